"""The eager definition of a draw; also the CPU path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.draws import (
    COIN_BITS,
    DrawKey,
    Stream,
    Words,
    coin,
    element_bits,
    element_counter,
    normals_of_rows,
    pick,
    row_words,
)
from varsmooth.ops.draw_rows.plan import DrawPlan
from varsmooth.ops.places import Places

CACHED_ELEMENTS = 1 << 17


def draw_rows(
    weight: Tensor,
    ids: Tensor | None,
    key: DrawKey,
    plan: DrawPlan,
    places: Places,
    *,
    replaces_all: bool = False,
    rows: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """As the operation of this name: everything in the weight's precision, cast at the end."""
    wanted = torch.arange(weight.shape[0], device=weight.device) if ids is None else ids
    words = _row_words(wanted, key, places)
    source = ids
    if replaces_all:
        source = plan.draw(words[1])
        words, plan = _row_words(wanted, key, Places()), plan.unsmoothed
    elif plan.smooths_words:
        source = torch.where(_coin_fell(wanted, words, plan), plan.draw(words[1]), wanted)
    factor, changed, flat_source = _element_choices(weight, wanted, words, plan)
    drawn: Tensor = _Rows.apply(weight, source, factor, changed, flat_source)
    if plan.deviation > 0:
        drawn = drawn + _gaussian(drawn, words, plan)
    if rows is not None:
        drawn = torch.nn.functional.pad(drawn, (0, 0, 0, rows - len(drawn))) if rows > len(drawn) else drawn[:rows]
    return drawn if dtype is None else drawn.to(dtype)


def replaced_words(ids: Tensor, key: DrawKey, plan: DrawPlan, places: Places) -> Tensor:
    """As the operation of this name, for a plan that smooths words."""
    return _coin_fell(ids, _row_words(ids, key, places), plan)


def _row_words(ids: Tensor, key: DrawKey, places: Places) -> Words:
    return row_words(key, ids, *places.coordinates(ids.numel(), ids.device))


def _coin_fell(ids: Tensor, words: Words, plan: DrawPlan) -> Tensor:
    assert plan.replace_from is not None
    return coin(words[0].int()) >= plan.replace_from[ids]


def _element_choices(
    weight: Tensor, rows: Tensor, words: Words, plan: DrawPlan
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the factor of dropout, the flat places that are replaced, and the flat places to read instead."""
    factor = changed = flat_source = None
    if plan.drops_words:
        # A product with 0 is faster than a masked fill of random places.
        kept = coin(words[0].int())[:, None] >= plan.drop_below
        factor = kept.to(_factor_dtype(weight)).mul_(plan.scale)
    if not (plan.drops_elements or plan.smooths_elements):
        return factor, None, None
    elements = _Elements(weight, rows, words[2].int(), words[3].int(), plan)
    replaced = [found for piece in _pieces(weight, rows) if (found := elements.choose(piece)) is not None]
    if replaced:
        changed, flat_source = (_joined([found[i] for found in replaced]) for i in range(2))
    return factor if plan.drops_words else elements.factor, changed, flat_source


class _Elements:
    """The choices of all elements, some rows at a time, in numpy on the CPU and in torch elsewhere."""

    def __init__(self, weight: Tensor, rows: Tensor, low: Tensor, high: Tensor, plan: DrawPlan) -> None:
        self.plan = plan
        self.width = weight.shape[1]
        shape = (rows.numel(), self.width)
        # A number would be multiplied in float32, whatever the result is written to.
        self.scale = weight.new_full((), plan.scale, dtype=_factor_dtype(weight))
        self.factor = self.scale.new_empty(shape) if plan.drops_elements else None
        self.rows, self.low, self.high = _array(rows), _array(low), _array(high)
        self.dimension = _array(torch.arange(self.width, dtype=torch.int32, device=weight.device))
        # 64 bits, so that places in a table of over two thousand million elements do not overflow.
        self.stride = _array(torch.tensor([self.width], device=weight.device))

    def choose(self, piece: slice) -> tuple[Tensor, Tensor] | None:
        """Fill in the factor of a piece; return the places that it replaces, and the places to read instead."""
        low, high, width, plan = self.low[piece], self.high[piece], self.width, self.plan
        coins = element_bits(low[:, None], high[:, None], element_counter(self.dimension, Stream.COIN))
        coins >>= 32 - COIN_BITS
        if self.factor is not None:
            torch.mul(_tensor(coins >= plan.drop_below), self.scale, out=self.factor[piece])
        if not plan.smooths_elements or plan.proposal is None:
            return None
        changed = _places(coins >= _array(plan.replace_from)[self.rows[piece]][:, None])
        row = changed // width
        column = changed - row * width
        bits = element_bits(low[row], high[row], element_counter(self.dimension[column], Stream.INDEX))
        picked = pick(bits, *(_array(part) for part in plan.proposal.alias_table))
        return _tensor(changed + piece.start * width), _tensor(column + picked * self.stride)


def _pieces(weight: Tensor, rows: Tensor) -> list[slice]:
    """Cut the rows so that on the CPU the temporaries of one piece stay in the cache."""
    size = max(1, CACHED_ELEMENTS // weight.shape[1]) if weight.device.type == "cpu" else max(1, rows.numel())
    return [slice(start, start + size) for start in range(0, max(1, rows.numel()), size)]


def _array(tensor: Tensor | None) -> Any:
    """Return a CPU tensor as the numpy array that shares its memory, any other as it is."""
    return tensor.numpy() if tensor is not None and tensor.device.type == "cpu" else tensor


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def _factor_dtype(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _places(mask: Any) -> Any:
    """Return the flat places where ``mask`` is true."""
    return np.flatnonzero(mask) if isinstance(mask, np.ndarray) else mask.view(-1).nonzero().view(-1)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _gaussian(drawn: Tensor, words: Words, plan: DrawPlan) -> Tensor:
    return (plan.deviation * normals_of_rows(words, drawn.shape[1])).to(drawn.dtype)


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
        drawn = weight.clone(memory_format=torch.contiguous_format) if source is None else weight[source].contiguous()
        if changed is not None and flat_source is not None:
            drawn.view(-1).index_copy_(0, changed, weight.reshape(-1).index_select(0, flat_source))
        if factor is not None:
            drawn.mul_(factor)
        ctx.save_for_backward(source, factor, changed, flat_source)
        ctx.shape, ctx.dtype = weight.shape, weight.dtype
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, factor, changed, flat_source = ctx.saved_tensors
        # In the half precision of a table the sum of many gradients would stand still long before its end.
        wide = torch.promote_types(grad.dtype, torch.float32)
        grad = grad * factor if factor is not None else grad.to(wide, copy=True)
        grad, moved = grad.to(wide).contiguous(), None
        if changed is not None:
            moved = grad.view(-1).index_select(0, changed)
            grad.view(-1).index_fill_(0, changed, 0)
        total = grad if source is None else grad.new_zeros(ctx.shape).index_add_(0, source, grad)
        if moved is not None:
            total.view(-1).index_add_(0, flat_source, moved)
        return total.to(ctx.dtype), None, None, None, None
