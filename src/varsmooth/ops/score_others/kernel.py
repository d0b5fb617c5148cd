"""Draw and product in one launch each way: the vectors themselves are never written."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.draws import DrawKey
from varsmooth.ops.draw_rows import DrawPlan, GradientSink, Places
from varsmooth.ops.draw_rows.choices import Draw, element_choices, normal, row_choices
from varsmooth.ops.draw_rows.sink import Gradient

ROWS = 1
COLUMNS = 512


@triton.jit
def vectors_at(weight, source, column, asked, row_kept, word, low, high, width, draw):
    """Return the drawn elements, and what multiplied those of the table."""
    among = asked & row_kept & (column < width)
    kept, _replaced = element_choices(column, among, row_kept, word, low, high, draw)
    factor = tl.where(kept, draw.scale, 0.0)
    vectors = tl.load(weight + source * width + column, mask=among, other=0.0) * factor
    if draw.gaussian:
        vectors += draw.deviation * normal(low, high, column)
    return vectors, factor


@triton.jit(do_not_specialize=["count", "draw"])
def score_kernel(hidden, weight, wanted, out, width, count, draw, rows: tl.constexpr, block: tl.constexpr):
    n = tl.program_id(0) * rows + tl.arange(0, rows)[:, None]
    asked = tl.load(wanted + n, mask=n < count, other=0) != 0
    word, source, _moved, row_kept, low, high = row_choices(n, asked, draw)
    products = tl.zeros((rows, block), tl.float32)
    for start in range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        vectors, _factor = vectors_at(weight, source, column, asked, row_kept, word, low, high, width, draw)
        own = tl.load(hidden + n.to(tl.int64) * width + column, mask=asked & (column < width), other=0.0)
        products += own.to(tl.float32) * vectors
    tl.store(out + n, tl.sum(products, 1, keep_dims=True), mask=n < count)


@triton.jit(do_not_specialize=["count", "draw"])
def give_back_kernel(
    grad, hidden, weight, wanted, to_hidden, total, width, count, draw, rows: tl.constexpr, block: tl.constexpr
):
    """Write the gradient of ``hidden`` to ``to_hidden``, and add that of the table to ``total``; either may be None."""
    n = tl.program_id(0) * rows + tl.arange(0, rows)[:, None]
    asked = tl.load(wanted + n, mask=n < count, other=0) != 0
    given = tl.load(grad + n, mask=asked, other=0.0)
    word, source, _moved, row_kept, low, high = row_choices(n, asked, draw)
    for start in range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        place = n.to(tl.int64) * width + column
        vectors, factor = vectors_at(weight, source, column, asked, row_kept, word, low, high, width, draw)
        inside = (n < count) & (column < width)
        if to_hidden is not None:
            tl.store(to_hidden + place, (given * vectors).to(to_hidden.dtype.element_ty), mask=inside)
        if total is not None:
            own = tl.load(hidden + place, mask=asked & inside, other=0.0).to(tl.float32)
            tl.atomic_add(total + source * width + column, own * given * factor, mask=asked & inside, sem="relaxed")


def score_others(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    key: DrawKey,
    plan: DrawPlan,
    places: Places,
    wanted: Tensor,
    *,
    sink: GradientSink | None = None,
) -> Tensor:
    """As the operation of this name, for a weight in float32."""
    draw = Draw.of(ids, key, plan, places, weight.device, replaces_all=True)
    table, gradient = (weight, None) if sink is None else (sink.table, sink.gradient)
    arguments = (hidden.contiguous(), table.contiguous(), wanted.contiguous(), draw, gradient)
    return cast(Tensor, _ScoreOthers.apply(*arguments))


class _ScoreOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, wanted: Tensor, draw: Draw, gradient: Gradient | None) -> Tensor:
        ctx.save_for_backward(hidden, weight, wanted, draw.step)
        ctx.draw, ctx.gradient = draw, gradient
        out = hidden.new_empty(len(hidden), dtype=torch.float32)
        _launch(score_kernel, (hidden, weight, wanted, out), hidden, draw)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, wanted, step = ctx.saved_tensors
        grad, draw, gradient = grad.contiguous(), ctx.draw._replace(step=step), ctx.gradient
        to_hidden = torch.empty_like(hidden)
        if gradient is None:
            total = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
            _launch(give_back_kernel, (grad, hidden, weight, wanted, to_hidden, total), hidden, draw)
            return to_hidden, total, None, None, None
        # Apart, because the recurrent layers wait for the one, and nobody waits for the other.
        _launch(give_back_kernel, (grad, hidden, weight, wanted, to_hidden, None), hidden, draw)
        with gradient.at_home(grad, hidden, wanted):
            total = torch.zeros_like(weight) if gradient.buffer is None else gradient.buffer
            _launch(give_back_kernel, (grad, hidden, weight, wanted, None, total), hidden, draw)
            gradient.keep(total)
        return to_hidden, None, None, None, None


def _launch(kernel: Any, pointers: tuple[Tensor | None, ...], hidden: Tensor, draw: Draw) -> None:
    count, width = hidden.shape
    block = min(COLUMNS, triton.next_power_of_2(width))
    if count:
        kernel[(triton.cdiv(count, ROWS),)](*pointers, width, count, draw, ROWS, block, num_warps=2)
