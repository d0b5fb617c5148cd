"""The generator inside kernels: the same integers as ``generator.py``, for Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from varsmooth.draws.generator import DrawKey, Integers, Words

BLOCK = 256


@triton.jit
def row_bits(word, sequence, position, site, seed, step):
    """Return the four words (uint32) of each row; coordinates are integers of any width, tensors or scalars."""
    key = (tl.cast(step, tl.int64) << 32) | tl.cast(seed, tl.int64)
    return tl.philox(
        key, tl.cast(word, tl.int32), tl.cast(sequence, tl.int32), tl.cast(position, tl.int32), tl.cast(site, tl.int32)
    )


@triton.jit
def element_bits(low, high, dimension, stream: tl.constexpr):
    """Return 32 random bits (int32) for each row (its words ``low`` and ``high``) and dimension."""
    bits = (tl.cast(dimension, tl.uint32) * 4 + stream) * 0x9E3779B9 + low
    bits = bits ^ (bits >> 16)
    bits = bits * 0x21F0AAAD
    bits = bits ^ (bits >> 15)
    bits = bits + high
    bits = bits * 0xD35A2D97
    return bits.to(tl.int32, bitcast=True)


@triton.jit
def coin(bits):
    """Return the top 24 bits of int32 words as a signed integer, to be held against a threshold."""
    return bits >> 8


@triton.jit
def pick(bits, threshold_pointer, alias_pointer, slot_bits: tl.constexpr, mask):
    """Return an index (int32) drawn by the alias method from int32 words; 0 where not ``mask``."""
    # In two steps, because a table of one slot would ask for a shift by 32.
    slot = ((bits.to(tl.uint32, bitcast=True) >> (31 - slot_bits)) >> 1).to(tl.int32)
    threshold = tl.load(threshold_pointer + slot, mask=mask, other=0)
    alias = tl.load(alias_pointer + slot, mask=mask, other=0)
    return tl.where(mask, tl.where((bits << slot_bits) >= threshold, alias, slot), 0)


@triton.jit(do_not_specialize=["rows", "site", "seed"])
def _row_words_kernel(words, sequences, positions, steps, out, rows, site, seed, block: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < rows
    word = tl.load(words + place, mask=inside, other=0)
    sequence = tl.load(sequences + place, mask=inside, other=0)
    position = tl.load(positions + place, mask=inside, other=0)
    w0, w1, w2, w3 = row_bits(word, sequence, position, site, seed, tl.load(steps))
    tl.store(out + place, w0.to(tl.int64), mask=inside)
    tl.store(out + rows + place, w1.to(tl.int64), mask=inside)
    tl.store(out + 2 * rows + place, w2.to(tl.int64), mask=inside)
    tl.store(out + 3 * rows + place, w3.to(tl.int64), mask=inside)


def row_words(key: DrawKey, word: Tensor, sequence: Integers = 0, position: Integers = 0) -> Words:
    """As ``generator.row_words``, in one launch."""
    parts = [as_tensor(part, word.device) for part in (word, sequence, position)]
    shape = torch.broadcast_shapes(*(part.shape for part in parts))
    places = [part.expand(shape).contiguous() for part in parts]
    rows = places[0].numel()
    out = torch.empty((4, *places[0].shape), dtype=torch.int64, device=word.device)
    if rows:
        step = as_tensor(key.step, word.device)
        _row_words_kernel[(triton.cdiv(rows, BLOCK),)](*places, step, out, rows, int(key.site), key.seed, BLOCK)
    w0, w1, w2, w3 = out
    return w0, w1, w2, w3


def as_tensor(value: Any, device: torch.device) -> Tensor:
    """Return an integer as a 0-d tensor, filled on the device so that nothing waits, and a tensor as it is."""
    return value if isinstance(value, Tensor) else torch.full((), int(value), dtype=torch.int64, device=device)
