"""One step of the optimiser in three kernels: measure the full gradient, finish the sums, update.

Every tensor takes part in one launch: program numbers are handed out to the tensors in ranges. There are no atomics, so the
same values give the same bits. Sizes are compiled in, so each model has kernels of its own.
"""

# What a kernel takes and returns are no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from varsmooth.ops.descend.descent import BETA2, EPSILON, Descent

MEASURED = 4096
"""elements that one program measures"""
UPDATED = 1024
"""elements that one program updates"""
FINISHED = 4096
"""partial sums that the finishing program adds at a time"""


@triton.jit
def _full_gradient(gradient, weight, row_weights, start, lanes, inside, l2, width: tl.constexpr):
    """Return gradient + l2 * c * weight and c; width is that of a row, 0 where every c is 1."""
    c = tl.full(weight.shape, 1.0, tl.float32)
    if width > 0:
        row = start // width
        c = tl.load(row_weights + row + ((start - row * width).to(tl.int32) + lanes) // width, mask=inside, other=0.0)
    return gradient.to(tl.float32) + (l2 * c) * weight, c


@triton.jit
def _measure(gradients, parameters, row_weights, partials, l2, sizes: tl.constexpr, widths: tl.constexpr, block: tl.constexpr):
    """Store the program's share of sum g^2 and, as many places on as there are programs, of sum c w^2."""
    program = tl.program_id(0)
    local = program
    for i in tl.static_range(len(sizes)):
        blocks = (sizes[i] + block - 1) // block
        if (local >= 0) & (local < blocks):
            start = local.to(tl.int64) * block
            lanes = tl.arange(0, block)
            inside = lanes < sizes[i] - start
            gradient = tl.load(gradients[i] + start + lanes, mask=inside, other=0.0)
            weight = tl.load(parameters[i] + start + lanes, mask=inside, other=0.0)
            full, c = _full_gradient(gradient, weight, row_weights[i], start, lanes, inside, l2, widths[i])
            tl.store(partials + program, tl.sum(full * full))
            tl.store(partials + tl.num_programs(0) + program, tl.sum((c * weight) * weight))
        local -= blocks


@triton.jit
def _finish(partials, results, clip, count: tl.constexpr, block: tl.constexpr):
    """Store norm, kl and the factor that clips, which is -1 where the norm is not finite."""
    lanes = tl.arange(0, block)
    squares = tl.zeros([block], tl.float64)
    penalty = tl.zeros([block], tl.float64)
    for start in range(0, count, block):
        inside = start + lanes < count
        squares += tl.load(partials + start + lanes, mask=inside, other=0.0).to(tl.float64)
        penalty += tl.load(partials + count + start + lanes, mask=inside, other=0.0).to(tl.float64)
    norm = tl.sqrt(tl.sum(squares)).to(tl.float32)
    tl.store(results, norm)
    tl.store(results + 1, (0.5 * tl.sum(penalty)).to(tl.float32))
    tl.store(results + 2, tl.where(norm < float("inf"), tl.minimum(clip / (norm + 1e-6), 1.0), -1.0))


@triton.jit
def _update(
    gradients,
    parameters,
    squares,
    averages,
    row_weights,
    results,
    lr,
    correction,
    average_step,
    l2,
    sizes: tl.constexpr,
    widths: tl.constexpr,
    averaged: tl.constexpr,
    beta2: tl.constexpr,
    epsilon: tl.constexpr,
    block: tl.constexpr,
):
    # From the last to the first: what was measured last may still be in the cache.
    local = tl.num_programs(0) - 1 - tl.program_id(0)
    factor = tl.load(results + 2)
    rate = tl.load(lr)
    unbias = tl.load(correction)
    for i in tl.static_range(len(sizes)):
        blocks = (sizes[i] + block - 1) // block
        if (local >= 0) & (local < blocks) & (factor >= 0):
            start = local.to(tl.int64) * block
            lanes = tl.arange(0, block)
            inside = lanes < sizes[i] - start
            gradient = tl.load(gradients[i] + start + lanes, mask=inside, other=0.0)
            weight = tl.load(parameters[i] + start + lanes, mask=inside, other=0.0)
            square = tl.load(squares[i] + start + lanes, mask=inside, other=0.0)
            full, _ = _full_gradient(gradient, weight, row_weights[i], start, lanes, inside, l2, widths[i])
            full *= factor
            square = beta2 * square + (1 - beta2) * full * full
            weight -= rate * full / (tl.sqrt(square * unbias) + epsilon)
            tl.store(squares[i] + start + lanes, square, mask=inside)
            tl.store(parameters[i] + start + lanes, weight, mask=inside)
            if averaged:
                step = tl.load(average_step)
                average = tl.load(averages[i] + start + lanes, mask=inside, other=0.0)
                gap = weight - average
                # The form that ends exactly at the weight for a step of 1.
                average = tl.where(step < 0.5, average + step * gap, weight - (1 - step) * gap)
                tl.store(averages[i] + start + lanes, average, mask=inside)
        local -= blocks


def descend(
    descent: Descent, gradients: list[Tensor], lr: Tensor, correction: Tensor, average_step: Tensor
) -> tuple[Tensor, Tensor]:
    """As ``varsmooth.ops.descend.descend`` says."""
    parameters, given = tuple(descent.parameters), tuple(gradients)
    # Any pointer will do where a width of 0 says that there is nothing to read.
    weights = tuple(p if c is None else c for p, c in zip(parameters, descent.row_weights, strict=True))
    widths = tuple(0 if c is None else p.shape[1:].numel() for p, c in zip(parameters, descent.row_weights, strict=True))
    sizes = tuple(parameter.numel() for parameter in parameters)
    count = sum(triton.cdiv(size, MEASURED) for size in sizes)
    partials = torch.empty(2 * count, dtype=torch.float32, device=lr.device)
    results = torch.empty(3, dtype=torch.float32, device=lr.device)
    _measure[(count,)](
        given, parameters, weights, partials, descent.l2, sizes=sizes, widths=widths, block=MEASURED, num_warps=8
    )
    _finish[(1,)](partials, results, descent.clip, count=count, block=FINISHED, num_warps=16)
    _update[(sum(triton.cdiv(size, UPDATED) for size in sizes),)](
        given,
        parameters,
        tuple(descent.squares),
        tuple(descent.averages or descent.parameters),
        weights,
        results,
        lr,
        correction,
        average_step,
        descent.l2,
        sizes=sizes,
        widths=widths,
        averaged=bool(descent.averages),
        beta2=BETA2,
        epsilon=EPSILON,
        block=UPDATED,
        num_warps=4,
    )
    return results[0], results[1]
