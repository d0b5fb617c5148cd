"""The program of the backward pass."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from varsmooth.ops.lstm_layer.parts import (
    SIZES,
    arrive,
    dot,
    eight_gradients,
    over_gates,
    over_groups,
    rounded,
    side_by_side,
    sum_of_splits,
    tanh,
    wait,
)


@triton.jit(do_not_specialize=SIZES)
def backward_program(
    grad_hidden,
    weight,
    memory0,
    memory,
    gates,
    update,
    grad_projected,
    grad_bias,
    carry,
    bias_sums,
    counters,
    first_step,
    last_step,
    steps,
    batch,
    H: tl.constexpr,
    BM: tl.constexpr,
    BU: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUPS: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    unit_blocks: tl.constexpr = (H + BU - 1) // BU
    group = tl.program_id(0) // unit_blocks
    block = tl.program_id(0) % unit_blocks

    # The left side, [4 * SPLITS, BU, CHUNK]: a gate's gradients are a contraction of their own. Rows of memory are its columns.
    part = tl.arange(0, 4 * SPLITS)[:, None, None]
    place = tl.arange(0, CHUNK)[None, :, None]
    k3 = (part % SPLITS) * CHUNK + (place // 32) * 32
    k3 += ((place % 8) // 2) * 8 + ((place // 16) % 2) * 4 + ((place // 8) % 2) * 2 + place % 2
    unit3 = block * BU + tl.arange(0, BU)[None, None, :]
    held = tl.load(weight + ((part // SPLITS) * H + k3) * H + unit3, mask=(k3 < H) & (unit3 < H), other=0.0)
    held = tl.permute(held, (0, 2, 1))

    # Eight rows of gradients, from runs of 8 values: (CHUNK // 32, gates, SPLITS, 8 rows, lane % 4).
    run = tl.arange(0, 4 * CHUNK * SPLITS)[:, None]
    k_first = (run // (128 * SPLITS)) * 32 + ((run // 32) % SPLITS) * CHUNK + (run % 4) * 8
    next_row = group * BM + (run // 4) % 8
    next_offsets = next_row * (4 * H) + ((run // (32 * SPLITS)) % 4) * H + k_first + tl.arange(0, 8)[None, :]

    row = group * BM + tl.arange(0, BM)[None, :]
    unit = block * BU + tl.arange(0, BU)[:, None]
    mask = row < batch
    if H % BU != 0:
        mask = mask & (unit < H)
    offsets = row * H + unit
    gate_offsets = row * (4 * H) + unit
    layer = batch.to(tl.int64) * H
    grad_cell = tl.load(carry + offsets, mask=mask & (last_step < steps), other=0.0)
    sum_in = tl.zeros((BU, BM), tl.float32)
    sum_forget = tl.zeros((BU, BM), tl.float32)
    sum_candidate = tl.zeros((BU, BM), tl.float32)
    sum_out = tl.zeros((BU, BM), tl.float32)
    summed = counters + tl.cdiv(batch, BM) * (steps + 1) + block
    counters += group * (steps + 1)
    step = last_step - 1
    while step >= first_step:
        saved = gates + step * (4 * layer)
        in_gate = tl.load(saved + gate_offsets, mask=mask, other=0.0).to(tl.float32)
        forget_gate = tl.load(saved + gate_offsets + H, mask=mask, other=0.0).to(tl.float32)
        candidate = tl.load(saved + gate_offsets + 2 * H, mask=mask, other=0.0).to(tl.float32)
        out_gate = tl.load(saved + gate_offsets + 3 * H, mask=mask, other=0.0).to(tl.float32)
        before_at = memory + (step - 1) * layer
        if step == 0:
            before_at = memory0
        before = tl.load(before_at + offsets, mask=mask, other=0.0)
        after = tanh(tl.load(memory + step * layer + offsets, mask=mask, other=0.0))
        grad = tl.load(grad_hidden + step * layer + offsets, mask=mask, other=0.0).to(tl.float32)
        to_cell = out_gate * (1.0 - after * after)
        to_out = after * out_gate * (1.0 - out_gate)
        to_in = candidate * in_gate * (1.0 - in_gate)
        to_forget = before * forget_gate * (1.0 - forget_gate)
        to_candidate = in_gate * (1.0 - candidate * candidate)
        if update is not None:
            factor = tl.load(update + step * layer + offsets, mask=mask, other=0.0)
            to_in *= factor
            to_candidate *= factor

        next_step = tl.minimum(step + 1, steps - 1)
        rows_there = batch
        arrivals = unit_blocks
        if step + 1 == steps:
            rows_there = 0
            arrivals = 0
        wait(counters + next_step, arrivals, INTERPRETED)
        next_at = grad_projected + next_step * (4 * layer)
        there = (next_row < rows_there) & (k_first < H)
        following = eight_gradients(next_at, next_offsets, there, SPLITS, CHUNK)
        if BM >= 16:
            there = (next_row + 8 < rows_there) & (k_first < H)
            second = eight_gradients(next_at + 32 * H, next_offsets, there, SPLITS, CHUNK)
        if BM >= 32:
            there = (next_row + 16 < rows_there) & (k_first < H)
            third = eight_gradients(next_at + 64 * H, next_offsets, there, SPLITS, CHUNK)
            there = (next_row + 24 < rows_there) & (k_first < H)
            fourth = eight_gradients(next_at + 96 * H, next_offsets, there, SPLITS, CHUNK)
        partial = over_gates(dot(held, following, PRECISION, INTERPRETED), SPLITS, BU)
        if BM >= 16:
            more = over_gates(dot(held, second, PRECISION, INTERPRETED), SPLITS, BU)
            partial = side_by_side(partial, more, SPLITS, BU, 8)
        if BM >= 32:
            more = over_gates(dot(held, third, PRECISION, INTERPRETED), SPLITS, BU)
            last = over_gates(dot(held, fourth, PRECISION, INTERPRETED), SPLITS, BU)
            more = side_by_side(more, last, SPLITS, BU, 8)
            partial = side_by_side(partial, more, SPLITS, BU, 16)
        grad += sum_of_splits(partial, SPLITS, BM, BU)
        grad_cell += grad * to_cell
        d_in = grad_cell * to_in
        d_forget = grad_cell * to_forget
        d_candidate = grad_cell * to_candidate
        d_out = grad * to_out
        out = grad_projected + step * (4 * layer)
        tl.store(out + gate_offsets, rounded(d_in, out.dtype.element_ty, INTERPRETED), mask=mask)
        tl.store(out + gate_offsets + H, rounded(d_forget, out.dtype.element_ty, INTERPRETED), mask=mask)
        tl.store(out + gate_offsets + 2 * H, rounded(d_candidate, out.dtype.element_ty, INTERPRETED), mask=mask)
        tl.store(out + gate_offsets + 3 * H, rounded(d_out, out.dtype.element_ty, INTERPRETED), mask=mask)
        arrive(counters + step)
        sum_in += d_in
        sum_forget += d_forget
        sum_candidate += d_candidate
        sum_out += d_out
        grad_cell *= forget_gate
        step -= 1
    tl.store(carry + offsets, grad_cell, mask=mask & (first_step > 0))

    unit = block * BU + tl.arange(0, BU)
    sums = bias_sums + group * (4 * H) + unit
    more = (unit < H) & (last_step < steps)
    tl.store(sums, tl.sum(sum_in, axis=1) + tl.load(sums, mask=more, other=0.0), mask=unit < H)
    tl.store(sums + H, tl.sum(sum_forget, axis=1) + tl.load(sums + H, mask=more, other=0.0), mask=unit < H)
    tl.store(sums + 2 * H, tl.sum(sum_candidate, axis=1) + tl.load(sums + 2 * H, mask=more, other=0.0), mask=unit < H)
    tl.store(sums + 3 * H, tl.sum(sum_out, axis=1) + tl.load(sums + 3 * H, mask=more, other=0.0), mask=unit < H)
    if first_step == 0:
        over_groups(bias_sums, grad_bias, summed, block, tl.cdiv(batch, BM), H, BU, GROUPS, INTERPRETED)
