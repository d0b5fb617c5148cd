"""The choices of a draw inside kernels, the same as in ``reference.py``.

A program works on a few rows and a block of their columns. What belongs to rows has the shape [rows, 1] and what belongs to
columns [1, block], so Philox runs once for each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.draws.kernel import as_tensor, coin, element_bits, row_bits
from varsmooth.ops.draw_rows.plan import DrawPlan
from varsmooth.ops.places import Places


class Draw(NamedTuple):
    """A draw as kernels take it: one argument instead of twenty. What decides which code is compiled is a constexpr."""

    ids: Tensor | None
    step: Tensor
    replace_from: Tensor | None
    slots: Tensor | None
    site: int
    seed: int
    drop_below: int
    columns: int
    sequence: int
    position: int
    scale: float
    deviation: float
    by_sequence: Any
    by_position: Any
    replaces_all: Any
    smooths_words: Any
    smooths_elements: Any
    drops_words: Any
    drops_elements: Any
    gaussian: Any
    slot_bits: Any

    @classmethod
    def of(
        cls,
        ids: Tensor | None,
        key: DrawKey,
        plan: DrawPlan,
        places: Places,
        device: torch.device,
        *,
        replaces_all: bool = False,
    ) -> Draw:
        slots = None if plan.proposal is None else plan.proposal.packed_alias_table
        return cls(
            ids=None if ids is None else ids.contiguous(),
            step=as_tensor(key.step, device),
            replace_from=plan.replace_from,
            slots=slots,
            site=int(key.site),
            seed=key.seed,
            drop_below=plan.drop_below,
            columns=places.columns,
            sequence=places.sequence,
            position=places.position,
            scale=plan.scale,
            deviation=plan.deviation,
            by_sequence=tl.constexpr(places.by_sequence),
            by_position=tl.constexpr(places.by_position),
            replaces_all=tl.constexpr(replaces_all),
            smooths_words=tl.constexpr(plan.smooths_words and not replaces_all),
            smooths_elements=tl.constexpr(plan.smooths_elements and not replaces_all),
            drops_words=tl.constexpr(plan.drops_words),
            drops_elements=tl.constexpr(plan.drops_elements),
            gaussian=tl.constexpr(plan.deviation > 0),
            slot_bits=tl.constexpr(0 if slots is None else len(slots).bit_length() - 1),
        )


@triton.jit
def signed(word):
    return word.to(tl.int32, bitcast=True)


@triton.jit
def pick(bits, wanted, otherwise, draw):
    """Return a word that the proposal draws from int32 words where ``wanted``, elsewhere ``otherwise``; as ``draws.pick``.

    Threshold and alias come in one load, as the second would wait for the first. Where nothing is wanted the first slot is
    read: loads without a mask are all under way at once, masked ones wait in turn.
    """
    # In two steps, because a table of one slot would ask for a shift by 32.
    slot = tl.where(wanted, (bits.to(tl.uint32, bitcast=True) >> (31 - draw.slot_bits)) >> 1, 0)
    packed = tl.load(draw.slots + slot)
    picked = tl.where((bits << draw.slot_bits) >= packed.to(tl.int32), (packed >> 32).to(tl.int32), slot.to(tl.int32))
    return tl.where(wanted, picked, otherwise)


@triton.jit
def words_at(n, word, draw):
    """Return the four words of row ``n``, which is drawn for ``word``; see ``Places``."""
    sequence = draw.sequence
    position = draw.position
    if draw.by_sequence:
        sequence += n % draw.columns
    if draw.by_position:
        position += n // draw.columns
    return row_bits(word, sequence, position, draw.site, draw.seed, tl.load(draw.step))


@triton.jit
def row_choices(n, inside, draw):
    """Return for rows n their words, the rows to read, whether those are replacements, what is kept, and the elements' keys."""
    word = tl.where(inside, n, 0)
    if draw.ids is not None:
        word = tl.load(draw.ids + n, mask=inside, other=0)
    w0, w1, low, high = words_at(n, word, draw)
    source = word
    moved = n < 0
    kept = inside
    if draw.replaces_all:
        moved = inside
        source = pick(signed(w1), moved, word, draw)
        w0, w1, low, high = row_bits(word, 0, 0, draw.site, draw.seed, tl.load(draw.step))
    elif draw.smooths_words:
        moved = inside & (coin(signed(w0)) >= tl.load(draw.replace_from + word, mask=inside, other=0))
        source = pick(signed(w1), moved, word, draw)
    if draw.drops_words:
        kept = inside & (coin(signed(w0)) >= draw.drop_below)
    return word, source.to(tl.int64), moved, kept, low, high


@triton.jit
def element_choices(column, among, row_kept, word, low, high, draw):
    """Return which of the elements ``among`` are kept, and which of those are replaced."""
    kept = among
    replaced = among & (column < 0)
    if draw.smooths_elements or draw.drops_elements:
        coins = coin(element_bits(low, high, column, 0))
        if draw.drops_elements:
            kept = among & (coins >= draw.drop_below)
        if draw.smooths_elements:
            replaced = kept & (coins >= tl.load(draw.replace_from + word, mask=row_kept, other=0))
    return kept, replaced


@triton.jit
def element_sources(column, replaced, source, low, high, draw):
    """Return the row that each element is read from: ``source``, or where ``replaced`` one that the proposal draws."""
    return pick(element_bits(low, high, column, 1), replaced, source, draw)


@triton.jit
def normal(low, high, column):
    """Return standard normal values by the Box-Muller transform, as ``draws.normal``."""
    radius = coin(element_bits(low, high, column, 2)).to(tl.float32) * 5.9604644775390625e-08 + 0.5
    angle = coin(element_bits(low, high, column, 3)).to(tl.float32) * 5.9604644775390625e-08 + 0.5
    return tl.sqrt(tl.log(radius + 2.98023223876953125e-08) * -2.0) * tl.cos(angle * 6.283185307179586)
