"""A draw in one launch, and its gradient: choices are made again from the key, so nothing is kept between the two."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.draws import DrawKey
from varsmooth.draws.kernel import coin
from varsmooth.ops.draw_rows.choices import Draw, element_choices, element_sources, normal, row_choices, signed, words_at
from varsmooth.ops.draw_rows.plan import DrawPlan
from varsmooth.ops.draw_rows.sink import Gradient, GradientSink
from varsmooth.ops.places import Places

ROWS = 1
"""How many rows a program works on."""
COLUMNS = 512
"""The most columns that it works on: in one warp, four 16-byte accesses for each thread."""
FLAGS = 256


@triton.jit
def tile(rows: tl.constexpr, block: tl.constexpr):
    """Return the rows [rows, 1] and the columns [1, block] of this program."""
    n = tl.program_id(0) * rows + tl.arange(0, rows)[:, None]
    return n, tl.program_id(1) * block + tl.arange(0, block)[None, :]


@triton.jit(do_not_specialize=["count", "draw"])
def draw_kernel(weight, out, width, count, draw, rows: tl.constexpr, block: tl.constexpr):
    """Row n of ``out`` [count, width] is a draw of row ``ids[n]`` of ``weight``, or of row n."""
    n, column = tile(rows, block)
    word, source, _, row_kept, low, high = row_choices(n, n < count, draw)
    among = row_kept & (column < width)
    kept, replaced = element_choices(column, among, row_kept, word, low, high, draw)
    if draw.smooths_elements:
        source = element_sources(column, replaced, source, low, high, draw)
        # Past the last column the last one is read, for the sake of a load without a mask.
        value = tl.load(weight + source * width + tl.minimum(column, width - 1))
    else:
        value = tl.load(weight + source * width + column, mask=among, other=0.0)
    value = tl.where(kept, value * draw.scale, 0.0)
    if draw.gaussian:
        value += draw.deviation * normal(low, high, column)
    inside = (n < count) & (column < width)
    tl.store(out + n.to(tl.int64) * width + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "draw", "given_rows"])
def give_back_own_kernel(
    grad, total, width, count, draw, given_rows, fresh: tl.constexpr, rows: tl.constexpr, block: tl.constexpr
):
    """Give row n of ``total`` [count, width] what row n of ``grad`` [given_rows, width], a draw of all rows, read from it.

    With ``fresh`` every element is written, so that ``total`` need not be zeroed before; else it is added to.
    """
    n, column = tile(rows, block)
    word, _, moved, row_kept, low, high = row_choices(n, n < given_rows, draw)
    among = row_kept & ~moved & (column < width)
    place = n.to(tl.int64) * width + column
    given = tl.load(grad + place, mask=among, other=0.0).to(tl.float32)
    kept, replaced = element_choices(column, among, row_kept, word, low, high, draw)
    given = tl.where(kept & ~replaced, given * draw.scale, 0.0)
    inside = (n < count) & (column < width)
    if not fresh:
        given += tl.load(total + place, mask=inside, other=0.0)
    tl.store(total + place, given, mask=inside)


@triton.jit(do_not_specialize=["count", "draw"])
def give_back_kernel(grad, total, width, count, draw, rows: tl.constexpr, block: tl.constexpr):
    """Add to the rows of ``total`` what row n of ``grad`` read from them; of a whole table, only what it read elsewhere."""
    n, column = tile(rows, block)
    word, source, moved, row_kept, low, high = row_choices(n, n < count, draw)
    among = row_kept & (column < width)
    if draw.ids is None and not draw.smooths_elements:
        among = among & moved
    given = tl.load(grad + n.to(tl.int64) * width + column, mask=among, other=0.0).to(tl.float32) * draw.scale
    kept, replaced = element_choices(column, among, row_kept, word, low, high, draw)
    if draw.smooths_elements:
        source = element_sources(column, replaced, source, low, high, draw)
        moved = replaced if draw.ids is None else kept
        tl.atomic_add(total + source * width + column, given, mask=moved, sem="relaxed")
    else:
        # Zeros too, because a wide addition cannot leave single elements out.
        given = tl.where(kept, given, 0.0)
        tl.atomic_add(total + source * width + column, given, mask=among, sem="relaxed")


@triton.jit(do_not_specialize=["count", "draw"])
def replaced_kernel(out, count, draw, block: tl.constexpr):
    """Write where the word-level coin fell."""
    n = tl.program_id(0) * block + tl.arange(0, block)
    inside = n < count
    word = tl.load(draw.ids + n, mask=inside, other=0)
    w0, _, _, _ = words_at(n, word, draw)
    fell = coin(signed(w0)) >= tl.load(draw.replace_from + word, mask=inside, other=0)
    tl.store(out + n, fell, mask=inside)


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
    sink: GradientSink | None = None,
) -> Tensor:
    """As the operation of this name, for a weight in float32."""
    draw = Draw.of(ids, key, plan, places, weight.device, replaces_all=replaces_all)
    count = ids.numel() if ids is not None else len(weight) if rows is None else rows
    table, gradient = (weight, None) if sink is None else (sink.table, sink.gradient)
    return cast(Tensor, _DrawRows.apply(table, draw, count, dtype or weight.dtype, gradient))


def replaced_words(ids: Tensor, key: DrawKey, plan: DrawPlan, places: Places) -> Tensor:
    """As the operation of this name, for a plan that smooths words."""
    out = torch.empty(ids.shape, dtype=torch.bool, device=ids.device)
    if count := ids.numel():
        replaced_kernel[(triton.cdiv(count, FLAGS),)](out, count, Draw.of(ids, key, plan, places, ids.device), FLAGS)
    return out


class _DrawRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, draw: Draw, count: int, dtype: torch.dtype, gradient: Gradient | None) -> Tensor:
        # Saved, so that autograd complains if someone advances the step before the choices are made again.
        ctx.save_for_backward(draw.step)
        ctx.draw, ctx.gradient, ctx.shape = draw, gradient, weight.shape
        out = weight.new_empty((count, weight.shape[1]), dtype=dtype)
        drawn = count if draw.ids is not None else min(count, len(weight))
        _launch(draw_kernel, (weight.contiguous(), out), weight.shape[1], drawn, draw)
        if drawn < count:
            out[drawn:].zero_()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (step,) = ctx.saved_tensors
        draw = ctx.draw._replace(step=step)
        nothing = (None,) * 4
        if ctx.gradient is None:
            return give_back(grad.contiguous(), draw, ctx.shape, None), *nothing
        grad = grad.contiguous()
        with ctx.gradient.at_home(grad):
            ctx.gradient.keep(give_back(grad, draw, ctx.shape, ctx.gradient.buffer))
        return None, *nothing


def give_back(grad: Tensor, draw: Draw, shape: tuple[int, int], total: Tensor | None) -> Tensor:
    """Add the gradient of a draw's table [V, D] to ``total``, made here when None, and return it."""
    count, width = shape
    if draw.ids is None:
        grad = grad[:count]  # rows past the table were zeros
    else:
        total = grad.new_zeros(shape, dtype=torch.float32) if total is None else total
        _launch(give_back_kernel, (grad, total), width, len(grad), draw)
        return total
    fresh = total is None
    total = grad.new_empty(shape, dtype=torch.float32) if total is None else total
    _launch(give_back_own_kernel, (grad, total), width, count, draw, len(grad), fresh)
    if draw.smooths_words or draw.smooths_elements or draw.replaces_all:
        # After all rows have been written, since any row may have been read from.
        _launch(give_back_kernel, (grad, total), width, len(grad), draw)
    return total


def _launch(kernel: Any, pointers: tuple[Tensor, Tensor], width: int, count: int, draw: Draw, *more: Any) -> None:
    """Run a program for each few of ``count`` rows and each block of their columns."""
    block = min(COLUMNS, triton.next_power_of_2(width))
    if count:
        grid = (triton.cdiv(count, ROWS), triton.cdiv(width, block))
        # A table keeps the whole GPU busy; the few rows of a look-up have room for a second warp each.
        warps = 1 if draw.ids is None else 2
        kernel[grid](*pointers, width, count, draw, *more, ROWS, block, num_warps=warps)
