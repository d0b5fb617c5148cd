"""The two passes over the logits of some rows, in Triton: to the loss of each row, and in place to the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW_MULTIPLE = 64
"""Rows of logits begin at multiples of so many elements, so that every access can be of 16 bytes."""

_COLUMNS_PER_LOSS_STEP = 2048
_COLUMNS_PER_GRADIENT_PROGRAM = 1024  # 4 warps, 8 columns a thread: sums over rows stay inside a thread
_ROWS_PER_GRADIENT_STEP = 2
_ROWS_PER_GRADIENT_PROGRAM = 32
# Below any logit, and finite: the greatest of no logits must not give NaN when it is taken from itself.
_LOWEST = tl.constexpr(-1e38)


@dataclass(frozen=True)
class Rows:
    """What is known of some rows beside their logits; all vectors contiguous."""

    targets: Tensor
    replaced: Tensor | None
    other: Tensor | None
    statistics: Tensor
    """[3, N] float32: the greatest logit, the log of the sum of exp(logit - greatest), the target's probability."""

    def part(self, rows: slice) -> Rows:
        replaced = None if self.replaced is None else self.replaced[rows]
        other = None if self.other is None else self.other[rows]
        return Rows(self.targets[rows], replaced, other, self.statistics[:, rows])


def empty_logits(rows: int, columns: int, like: Tensor) -> Tensor:
    """Return uninitialised [rows, columns] with each row at a multiple of ``ROW_MULTIPLE``."""
    return like.new_empty(rows, padded(columns))[:, :columns]


def padded(columns: int) -> int:
    """Return the distance between rows of logits, in elements."""
    return -(-columns // ROW_MULTIPLE) * ROW_MULTIPLE


def write_losses(logits: Tensor, bias: Tensor | None, rows: Rows, nll: Tensor) -> None:
    """Write ``nll`` and ``rows.statistics``, given ``logits`` [N, V] (from ``empty_logits``) without the bias."""
    count, columns = logits.shape
    lane = 16 // logits.dtype.itemsize  # columns that a thread reads at once
    step = min(_COLUMNS_PER_LOSS_STEP, max(lane, triton.next_power_of_2(columns)))
    _loss_kernel[(count,)](
        logits,
        logits.stride(0),
        bias,
        rows.targets,
        rows.replaced,
        rows.other,
        nll,
        rows.statistics,
        rows.statistics.stride(0),
        columns,
        HAS_BIAS=bias is not None,
        REPLACES=rows.replaced is not None,
        LANES=step // lane,
        LANE=lane,
        num_warps=4,
    )


def logits_to_gradient(
    logits: Tensor, bias: Tensor | None, rows: Rows, grad: Tensor, d_other: Tensor | None, *, sum_rows: bool
) -> Tensor | None:
    """Overwrite ``logits`` with their gradient, and ``d_other``; return the bias's gradient where ``sum_rows``.

    The place of a replaced target becomes 0, because its logit did not come from the table.
    """
    count, columns = logits.shape
    width = min(_COLUMNS_PER_GRADIENT_PROGRAM, max(ROW_MULTIPLE, triton.next_power_of_2(columns)))
    row_blocks = triton.cdiv(count, _ROWS_PER_GRADIENT_PROGRAM)
    column_blocks = triton.cdiv(logits.stride(0), width)  # the padding too: products read it
    sums = logits.new_empty(row_blocks, columns, dtype=torch.float32) if sum_rows else None
    _gradient_kernel[(row_blocks * column_blocks,)](
        logits,
        logits.stride(0),
        bias,
        rows.targets,
        rows.replaced,
        rows.statistics,
        rows.statistics.stride(0),
        grad,
        grad.stride(0),  # 0 where the gradient of a sum was expanded
        d_other,
        sums,
        count,
        columns,
        HAS_BIAS=bias is not None,
        REPLACES=rows.replaced is not None,
        SUM_ROWS=sum_rows,
        ROWS=_ROWS_PER_GRADIENT_PROGRAM,
        STEP=_ROWS_PER_GRADIENT_STEP,
        WIDTH=width,
        num_warps=4,
    )
    return None if sums is None else sums.sum(0)


@triton.jit
def _loss_kernel(
    logits,
    stride,
    bias,
    targets,
    replaced,
    other,
    nll,
    statistics,
    statistics_stride,
    columns,
    HAS_BIAS: tl.constexpr,
    REPLACES: tl.constexpr,
    LANES: tl.constexpr,
    LANE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    # A target outside the table becomes NaN, not a wild read.
    known = (target >= 0) & (target < columns)
    target_logit = tl.load(logits + target, mask=known, other=float("nan")).to(tl.float32)
    if REPLACES:
        target_logit = tl.where(tl.load(replaced + row), tl.load(other + row).to(tl.float32), target_logit)
    if HAS_BIAS:
        target_logit += tl.load(bias + target, mask=known, other=float("nan")).to(tl.float32)

    # Each lane keeps its own maximum and sum, so that threads exchange nothing inside the loop.
    greatest = tl.full([LANES], _LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    place = tl.arange(0, LANES)[:, None] * LANE + tl.arange(0, LANE)[None, :]
    target = target.to(tl.int32)
    whole = columns // (LANES * LANE) * (LANES * LANE)
    for first in range(0, whole, LANES * LANE):
        # No mask here: one that ends off a multiple of the lane would split every access.
        column = first + place
        x = tl.load(logits + column).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias + column).to(tl.float32)
        greatest, total = _fold(tl.where(column == target, target_logit, x), greatest, total)
    if whole < columns:
        column = whole + place
        x = tl.load(logits + column, mask=column < stride, other=0.0).to(tl.float32)
        x = tl.where(column < columns, x, float("-inf"))
        if HAS_BIAS:
            x += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
        greatest, total = _fold(tl.where(column == target, target_logit, x), greatest, total)

    highest = tl.max(greatest, axis=0)
    log_sum = tl.log(tl.sum(total * tl.exp(greatest - highest), axis=0))
    loss = (highest - target_logit) + log_sum
    tl.store(nll + row, loss)
    # Not the sum of the two, which at large logits would lose the digits that the probabilities need.
    tl.store(statistics + row, highest)
    tl.store(statistics + statistics_stride + row, log_sum)
    tl.store(statistics + 2 * statistics_stride + row, tl.exp(-loss))


@triton.jit
def _fold(x, greatest, total):
    """Fold logits into the greatest logit and the sum of exp(logit - greatest) of each lane."""
    new = tl.maximum(greatest, tl.max(x, axis=1))
    return new, total * tl.exp(greatest - new) + tl.sum(tl.exp(x - new[:, None]), axis=1)


@triton.jit
def _gradient_kernel(
    logits,
    stride,
    bias,
    targets,
    replaced,
    statistics,
    statistics_stride,
    grad,
    grad_stride,
    d_other,
    sums,
    count,
    columns,
    HAS_BIAS: tl.constexpr,
    REPLACES: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    column_blocks = tl.cdiv(stride, WIDTH)
    column_block = tl.program_id(0) % column_blocks
    row_block = tl.program_id(0) // column_blocks
    column = column_block * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    shift = tl.zeros([WIDTH], tl.float32)
    if HAS_BIAS:
        shift = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    first_row = row_block.to(tl.int64) * ROWS
    for ahead in range(0, tl.minimum(ROWS, count - first_row).to(tl.int32), STEP):
        row = first_row + ahead + tl.arange(0, STEP)
        live = row < count
        target = tl.load(targets + row, mask=live, other=-1).to(tl.int32)
        highest = tl.load(statistics + row, mask=live, other=float("inf"))  # no probability in a row that is not there
        log_sum = tl.load(statistics + statistics_stride + row, mask=live, other=0.0)
        target_probability = tl.load(statistics + 2 * statistics_stride + row, mask=live, other=0.0)
        scale = tl.load(grad + row * grad_stride, mask=live, other=0.0)
        at_target = (target_probability - 1.0) * scale

        places = logits + (row * stride)[:, None] + column[None, :]
        # The padding is read, and becomes 0: a mask that ends off a multiple of 8 would split every access.
        inside = live[:, None] & (column < stride)[None, :]
        x = tl.load(places, mask=inside, other=0.0).to(tl.float32)
        x = tl.where((column < columns)[None, :], x, float("-inf")) + shift[None, :]
        probability = tl.exp((x - highest[:, None]) - log_sum[:, None])
        is_target = column[None, :] == target[:, None]
        gradient = tl.where(is_target, at_target[:, None], probability * scale[:, None])
        if SUM_ROWS:
            total += tl.sum(gradient, axis=0)
        if REPLACES:
            is_replaced = tl.load(replaced + row, mask=live, other=0) != 0
            gradient = tl.where(is_target & is_replaced[:, None], 0.0, gradient)
            tl.store(d_other + row, tl.where(is_replaced, at_target, 0.0), mask=live & (column_block == 0))
        tl.store(places, gradient, mask=inside)
    if SUM_ROWS:
        tl.store(sums + row_block.to(tl.int64) * columns + column, total, mask=column < columns)
