"""The eager definition of a draw; also the CPU path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.draws import DrawKey, Integers, Stream, Words, coin, element_bits, element_counter, normal, pick, row_words
from varsmooth.ops.draw_rows.plan import DrawPlan

CACHED_ELEMENTS = 1 << 18


def draw_rows(
    weight: Tensor,
    ids: Tensor | None,
    sequence: Integers,
    position: Integers,
    key: DrawKey,
    plan: DrawPlan,
    source: Tensor | None = None,
) -> Tensor:
    """Return one draw of rows ``ids`` [N] of ``weight`` [V, D], or of the whole table when ``ids`` is None; shape [N, D].

    ``sequence`` and ``position`` broadcast against ``ids``. ``source`` names the rows to read instead of those that the plan
    would choose; dropout and variance still belong to ``ids``.
    """
    everything = ids is None
    rows = torch.arange(weight.shape[0], device=weight.device) if ids is None else ids
    words = row_words(key, rows, sequence, position)
    if source is None and plan.smooths_words:
        source = torch.where(replaced_words(rows, words, plan), _pick(words[1], plan), rows)
    if source is None and not everything:
        source = rows
    factor, changed, flat_source = _element_choices(weight, rows, words, plan)
    drawn: Tensor = _Rows.apply(weight, source, factor, changed, flat_source)  # type: ignore[no-untyped-call]
    return drawn if plan.deviation == 0 else drawn + _gaussian(drawn, words, plan)


def replaced_words(ids: Tensor, words: Words, plan: DrawPlan) -> Tensor:
    """Return where the word-level coin fell: the word is replaced, even if by itself."""
    if plan.replace_from is None or not plan.smooths_words:
        return torch.zeros_like(ids, dtype=torch.bool)
    return coin(words[0]) >= plan.replace_from[ids]


def _pick(bits: Tensor, plan: DrawPlan) -> Tensor:
    assert plan.alias_threshold is not None
    assert plan.alias is not None
    return pick(bits, plan.alias_threshold, plan.alias)


def _element_choices(
    weight: Tensor, rows: Tensor, words: Words, plan: DrawPlan
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the factor of dropout, the flat places that are replaced, and the flat places to read instead."""
    factor = changed = flat_source = None
    if plan.drops_elements or plan.smooths_elements:
        low, high, width = words[2].int(), words[3].int(), weight.shape[1]
        counter = element_counter(torch.arange(width, device=weight.device), Stream.COIN)
        pieces = [
            _piece_choices(coin(element_bits(low[piece, None], high[piece, None], counter)), rows, plan, piece)
            for piece in _pieces(weight, rows)
        ]
        factor, changed = (_joined([piece[i] for piece in pieces]) for i in range(2))
        if changed is not None:
            row = changed // width
            column = changed - row * width
            counter = element_counter(column, Stream.INDEX)
            bits = element_bits(low.index_select(0, row), high.index_select(0, row), counter)
            flat_source = _pick(bits, plan) * width + column
    if plan.drops_words:
        factor = _factor(coin(words[0])[:, None], plan)
    return factor, changed, flat_source


def _pieces(weight: Tensor, rows: Tensor) -> list[slice]:
    """Cut the rows so that on the CPU the temporaries of one piece stay in the cache: half the time of one go."""
    size = max(1, CACHED_ELEMENTS // weight.shape[1]) if weight.device.type == "cpu" else max(1, rows.numel())
    return [slice(start, start + size) for start in range(0, max(1, rows.numel()), size)]


def _piece_choices(coins: Tensor, rows: Tensor, plan: DrawPlan, piece: slice) -> tuple[Tensor | None, Tensor | None]:
    factor = _factor(coins, plan) if plan.drops_elements else None
    if plan.replace_from is None or not plan.smooths_elements:
        return factor, None
    places = _places(coins >= plan.replace_from.index_select(0, rows[piece])[:, None])
    return factor, places + piece.start * coins.shape[1]


def _factor(coins: Tensor, plan: DrawPlan) -> Tensor:
    """0 where dropped, else the inverse of the share that is kept; a product is faster than a masked fill of random places."""
    return (coins >= plan.drop_below).float().mul_(plan.scale)


def _places(mask: Tensor) -> Tensor:
    """Return the flat places where ``mask`` is true; numpy finds them twice as fast as torch on the CPU."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.view(-1).nonzero().view(-1)


def _joined(pieces: list[Tensor | None]) -> Tensor | None:
    tensors = [piece for piece in pieces if piece is not None]
    return None if not tensors else tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _gaussian(drawn: Tensor, words: Words, plan: DrawPlan) -> Tensor:
    dimension = torch.arange(drawn.shape[1], device=drawn.device)
    radius, angle = (
        element_bits(words[2][:, None], words[3][:, None], element_counter(dimension, stream))
        for stream in (Stream.RADIUS, Stream.ANGLE)
    )
    return (plan.deviation * normal(radius, angle)).to(drawn.dtype)


class _Rows(torch.autograd.Function):
    """Read rows, overwrite the changed elements, drop and scale; the gradient goes back to where each value was read."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        source: Tensor | None,
        factor: Tensor | None,
        changed: Tensor | None,
        flat_source: Tensor | None,
    ) -> Tensor:
        drawn = weight.clone() if source is None else weight[source]
        if changed is not None and flat_source is not None:
            drawn.view(-1).index_copy_(0, changed, weight.reshape(-1).index_select(0, flat_source))
        if factor is not None:
            drawn.mul_(factor)
        ctx.save_for_backward(source, factor, changed, flat_source)
        ctx.shape = weight.shape
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, factor, changed, flat_source = ctx.saved_tensors
        grad = grad.clone(memory_format=torch.contiguous_format) if factor is None else (grad * factor).contiguous()
        moved = None
        if changed is not None:
            moved = grad.view(-1).index_select(0, changed)
            grad.view(-1).index_fill_(0, changed, 0)
        total = grad if source is None else grad.new_zeros(ctx.shape).index_add_(0, source, grad)
        if moved is not None:
            total.view(-1).index_add_(0, flat_source, moved)
        return total, None, None, None, None
