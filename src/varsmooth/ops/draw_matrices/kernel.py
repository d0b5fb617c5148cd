"""The draw as one launch, and its gradient as another: both are a copy with a factor for each column."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.draws import DrawKey, Stream
from varsmooth.draws.kernel import as_tensor, coin, element_bits, row_bits
from varsmooth.ops.draw_matrices.dropout import Dropout
from varsmooth.ops.draw_matrices.layout import FlatLayout, flat_layout
from varsmooth.ops.draw_matrices.reference import DrawnWeights

TILE = 4096
COIN = tl.constexpr(int(Stream.COIN))


@triton.jit(do_not_specialize=["site", "seed", "drop_below"])
def _copy_kernel(
    sources,
    targets,
    bias_sources,
    bias_targets,
    zero_targets,
    step,
    site,
    seed,
    drop_below,
    scale,
    rows,
    width,
    matrices: tl.constexpr,
    drops: tl.constexpr,
    writes_zeros: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Copy a tile of one matrix times the factors of its columns, and with the tiles of ih a piece of the layer's bias."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    place = row[:, None] * width + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < width)
    for matrix in tl.static_range(matrices):
        if tl.program_id(2) == matrix:
            value = tl.load(sources[matrix] + place, mask=inside, other=0.0).to(tl.float32)
            if drops and matrix > 0:
                _, _, low, high = row_bits(0, 0, matrix, site, seed, tl.load(step))
                kept = coin(element_bits(low, high, column, COIN)) >= drop_below
                value = value * tl.where(kept, scale, 0.0)[None, :]
            tl.store(targets[matrix] + place, value, mask=inside)
            if matrix % 2 == 0:
                in_bias = (row < rows) & (tl.program_id(1) == 0)
                bias = tl.load(bias_sources[matrix // 2] + row, mask=in_bias, other=0.0).to(tl.float32)
                tl.store(bias_targets[matrix // 2] + row, bias, mask=in_bias)
                if writes_zeros:
                    tl.store(zero_targets[matrix // 2] + row, tl.zeros_like(bias), mask=in_bias)


def draw_matrices(
    matrices: list[Tensor], biases: list[Tensor], dropout: Dropout, key: DrawKey, dtype: torch.dtype
) -> DrawnWeights:
    """See ``varsmooth.ops.draw_matrices``."""
    rows, width = matrices[0].shape
    layout = flat_layout(rows, width, len(biases), matrices[0].device, dtype)
    step = as_tensor(key.step, matrices[0].device)
    drawn = _Draw.apply(dropout, key, dtype, layout, step, *matrices, *biases)
    return DrawnWeights(list(drawn[: len(matrices)]), list(drawn[len(matrices) :]))


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dropout: Dropout, key: DrawKey, dtype: torch.dtype, layout: FlatLayout, step: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        count = 2 * layout.layers
        flat = layout.buffer(weights[0].device, dtype)
        matrices, biases = layout.views(flat)
        _copy(weights[:count], matrices, weights[count:], biases[::2], biases[1::2], step, dropout, key)
        ctx.save_for_backward(step)
        ctx.dropout, ctx.key, ctx.layout, ctx.like = dropout, key, layout, weights[0].new_empty(0)
        ctx.mark_non_differentiable(*biases[1::2])
        # Else the zeros' gradients, which nobody reads, would be filled in.
        ctx.set_materialize_grads(False)
        return *matrices, *biases

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (step,) = ctx.saved_tensors
        count, rows, width = 2 * ctx.layout.layers, ctx.layout.rows, ctx.layout.width
        matrices = [_or_zeros(gradient, (rows, width), ctx.like) for gradient in gradients[:count]]
        biases = [_or_zeros(gradient, (rows,), ctx.like) for gradient in gradients[count::2]]
        found = [ctx.like.new_empty(gradient.shape) for gradient in (*matrices, *biases)]
        _copy(matrices, found[:count], biases, found[count:], None, step, ctx.dropout, ctx.key)
        return None, None, None, None, None, *found


def _or_zeros(gradient: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return like.new_zeros(shape) if gradient is None else gradient


def _copy(
    sources: Any,
    targets: Any,
    bias_sources: Any,
    bias_targets: Any,
    zero_targets: Any,
    step: Tensor,
    dropout: Dropout,
    key: DrawKey,
) -> None:
    """Launch; only the sources may have gaps."""
    rows, width = targets[0].shape
    block_columns = min(triton.next_power_of_2(width), TILE // 8)
    block_rows = min(triton.next_power_of_2(rows), TILE // block_columns)
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(width, block_columns), len(targets))
    _copy_kernel[grid](
        tuple(source.contiguous() for source in sources),
        tuple(targets),
        tuple(source.contiguous() for source in bias_sources),
        tuple(bias_targets),
        tuple(bias_targets if zero_targets is None else zero_targets),
        step,
        int(key.site),
        key.seed,
        dropout.drop_below,
        dropout.scale,
        rows,
        width,
        matrices=len(targets),
        drops=dropout.rate > 0,
        writes_zeros=zero_targets is not None,
        block_rows=block_rows,
        block_columns=block_columns,
    )
