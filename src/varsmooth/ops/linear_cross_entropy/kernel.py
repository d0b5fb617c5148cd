"""The loss and its gradients on a GPU: stock matrix products, and one Triton pass over the logits each way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.ops.linear_cross_entropy.passes import Rows, empty_logits, logits_to_gradient, padded, write_losses

HALF_PRECISION_BYTES = 256 * 2**20
"""The most that is held of 16-bit logits; if all fit, they are kept for the backward pass."""
FULL_PRECISION_BYTES = 64 * 2**20
"""The most that is held of float32 logits, and never those of the whole window; the backward pass computes them again."""


def linear_cross_entropy(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    replaced: Tensor | None = None,
    other: Tensor | None = None,
    words: int | None = None,
) -> Tensor:
    """As the operation of this name; ``hidden`` and ``table`` have one dtype, N is at least 1."""
    vectors = (None if vector is None else vector.contiguous() for vector in (bias, targets, replaced, other))
    return cast(Tensor, _LinearCrossEntropy.apply(hidden, table, *vectors, len(table) if words is None else words))


def rows_per_chunk(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Return how many rows of logits to hold at once: chunks of nearly equal size within the limits."""
    row_bytes = padded(columns) * dtype.itemsize
    if dtype.itemsize == 2:
        chunks = _ceil(rows, max(1, HALF_PRECISION_BYTES // row_bytes))
    else:
        chunks = max(min(rows, 2), _ceil(rows, max(1, FULL_PRECISION_BYTES // row_bytes)))
    return _ceil(rows, chunks)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        replaced: Tensor | None,
        other: Tensor | None,
        words: int,
    ) -> Tensor:
        nll = hidden.new_empty(len(hidden), dtype=torch.float32)
        rows = Rows(targets, replaced, other, hidden.new_empty(3, len(hidden), dtype=torch.float32))
        chunk = rows_per_chunk(len(hidden), len(table), hidden.dtype)
        logits = empty_logits(chunk, len(table), hidden)
        with torch.cuda.device_of(hidden):
            for part in _parts(len(hidden), chunk):
                write_losses(_product(hidden[part], table, logits)[:, :words], bias, rows.part(part), nll[part])
        ctx.save_for_backward(hidden, table, bias, targets, replaced, other, rows.statistics)
        ctx.kept = logits if chunk == len(hidden) else None
        ctx.spent = False
        ctx.words = words
        return nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.spent:
            raise RuntimeError(
                "linear_cross_entropy can be differentiated only once: its logits were overwritten by their gradient; "
                "compute the loss again instead of retaining the graph"
            )
        hidden, table, bias, targets, replaced, other, statistics = ctx.saved_tensors
        kept, ctx.kept, ctx.spent = ctx.kept, None, True
        rows = Rows(targets, replaced, other, statistics)
        return _gradients(hidden, table, bias, rows, ctx.words, grad, kept, ctx.needs_input_grad)


def _gradients(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    rows: Rows,
    words: int,
    grad: Tensor,
    kept: Tensor | None,
    needed: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Return one gradient per input of the function, None where it is not needed."""
    chunk = len(hidden) if kept is not None else rows_per_chunk(len(hidden), len(table), hidden.dtype)
    logits = kept if kept is not None else empty_logits(chunk, len(table), hidden)
    d_hidden = hidden.new_empty(hidden.shape) if needed[0] else None
    d_other = None if rows.other is None else rows.other.new_empty(len(hidden))
    d_table: Tensor | None = None
    d_bias: Tensor | None = None
    for part in _parts(len(hidden), chunk):
        block = logits if kept is not None else _product(hidden[part], table, logits)
        d_other_part = None if d_other is None else d_other[part]
        sums = logits_to_gradient(block[:, :words], bias, rows.part(part), grad[part], d_other_part, sum_rows=needed[2])
        if sums is not None:
            d_bias = sums if d_bias is None else d_bias.add_(sums)
        if d_hidden is not None:
            torch.mm(block, table, out=d_hidden[part])
        if needed[1]:
            d_table = _plus_product(d_table, block.t(), hidden[part], alone=chunk == len(hidden))
    d_table = None if d_table is None else d_table.to(table.dtype)
    d_bias = None if d_bias is None or bias is None else d_bias.to(bias.dtype)
    return d_hidden, d_table, d_bias, None, None, d_other, None


def _parts(rows: int, chunk: int) -> Iterator[slice]:
    return (slice(first, min(first + chunk, rows)) for first in range(0, rows, chunk))


def _product(hidden: Tensor, table: Tensor, logits: Tensor) -> Tensor:
    """Write the logits of ``hidden``, without the bias, to the first rows of ``logits``, and return those."""
    return torch.mm(hidden, table.t(), out=logits[: len(hidden)])


def _plus_product(total: Tensor | None, left: Tensor, right: Tensor, *, alone: bool) -> Tensor:
    """Add a product to ``total``, which is in float32 where the product is not ``alone``."""
    if total is None:
        product = torch.mm(left, right)
        return product if alone else product.float()
    if left.dtype == total.dtype:
        return total.addmm_(left, right)
    return total.add_(torch.mm(left, right))
