"""The two persistent programs of an LSTM layer.

A program owns BU units of BM sequences and does all time steps. The programs of one group of sequences need each other's
results at every step, and exchange them through global memory, with one counter for each group and step:

- A program writes its results, all its threads meet at a barrier, and one of them adds 1 with release order at GPU scope. The
  barrier puts the writes of all threads before that addition, and release order makes them visible to whoever sees it.
- Each thread that will read spins by itself, with acquire order at GPU scope, until it sees the additions of all programs of
  the group, and only then loads. What it saw was made by a chain of atomic additions, so it synchronises with every one of
  them. The loads go to L2 (".cg"), which all processors share; every step has its own addresses, so nothing is written twice.
- Counters start at zero and only grow, one for each step, so a fast program cannot take a slow one's place.

All programs must run at once, or those that wait would keep out those that are waited for: hence the cooperative launch.

The contraction is split over the warps, and each warp keeps its part of the weights in registers. The order of a contraction
is free, so long as both sides agree: it is chosen such that the 8 values (16 bytes) that a thread loads in one go are those
that it has to hold as the right side of the tensor cores' product (m16n8k16, where a thread of lane ``l`` holds the values
``2 * (l % 4) + {0, 1, 8, 9}`` of row ``l // 4``). Within 32 values, place ``(step, half, l % 4, pair)`` of the contraction is
value ``(l % 4, step, half, pair)`` in memory, all but ``l % 4`` counted by twos. So the states go from memory straight to the
tensor cores, eight sequences at a time.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from varsmooth.ops.lstm_layer.parts import (
    arrive,
    dot,
    eight_gradients,
    eight_states,
    gates_of,
    over_gates,
    rounded,
    side_by_side,
    sigmoid,
    sum_of_splits,
    tanh,
    wait,
)

SIZES = ["first_step", "last_step", "steps", "batch"]
"""Arguments that no kernel is compiled anew for."""


@triton.jit(do_not_specialize=SIZES)
def forward_program(
    projected,
    weight,
    hidden0,
    memory0,
    hidden,
    memory,
    gates,
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
    PRECISION: tl.constexpr,
    SAVE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    unit_blocks: tl.constexpr = (H + BU - 1) // BU
    group = tl.program_id(0) // unit_blocks
    block = tl.program_id(0) % unit_blocks

    # The left side, [SPLITS, 4 * BU, CHUNK], from runs of 8 values: (CHUNK // 32, columns // 8, SPLITS, 8 columns, lane % 4).
    run = tl.arange(0, BU * CHUNK * SPLITS // 2)[:, None]
    k_first = (run // (16 * BU * SPLITS)) * 32 + ((run // 32) % SPLITS) * CHUNK + (run % 4) * 8
    column = ((run // (32 * SPLITS)) % (BU // 2)) * 8 + (run // 4) % 8
    unit_held = block * BU + column % BU
    held_at = weight + ((column // BU) * H + unit_held) * H + k_first + tl.arange(0, 8)[None, :]
    held = tl.load(held_at, mask=(k_first < H) & (unit_held < H), other=0.0)
    held = tl.reshape(held, (CHUNK // 32, BU // 2, SPLITS, 8, 4, 2, 2, 2))
    held = tl.reshape(tl.permute(held, (2, 1, 3, 0, 5, 6, 4, 7)), (SPLITS, 4 * BU, CHUNK))

    # Eight states, from runs of 8 values: (CHUNK // 32, SPLITS, 8 rows, lane % 4).
    run = tl.arange(0, CHUNK * SPLITS)[:, None]
    k_first = (run // (32 * SPLITS)) * 32 + ((run // 32) % SPLITS) * CHUNK + (run % 4) * 8
    state_row = group * BM + (run // 4) % 8
    state_offsets = state_row * H + k_first + tl.arange(0, 8)[None, :]

    row = group * BM + tl.arange(0, BM)[None, :]
    unit = block * BU + tl.arange(0, BU)[:, None]
    mask = row < batch
    if H % BU != 0:
        mask = mask & (unit < H)
    offsets = row * H + unit
    gate_offsets = row * (4 * H) + unit
    layer = batch.to(tl.int64) * H
    memory_at = memory + (first_step - 1) * layer
    if first_step == 0:
        memory_at = memory0
        tl.store(hidden + offsets, tl.load(hidden0 + offsets, mask=mask, other=0.0), mask=mask)
    cell = tl.load(memory_at + offsets, mask=mask, other=0.0)
    counters += group * steps
    step = first_step
    while step < last_step:
        inputs = projected + step * (4 * layer)
        p_in = tl.load(inputs + gate_offsets, mask=mask, other=0.0).to(tl.float32)
        p_forget = tl.load(inputs + gate_offsets + H, mask=mask, other=0.0).to(tl.float32)
        p_candidate = tl.load(inputs + gate_offsets + 2 * H, mask=mask, other=0.0).to(tl.float32)
        p_out = tl.load(inputs + gate_offsets + 3 * H, mask=mask, other=0.0).to(tl.float32)
        state_at = hidden + step * layer
        arrivals = unit_blocks
        if step == 0:
            state_at = hidden0
            arrivals = 0
        wait(counters + tl.maximum(step - 1, 0), arrivals, INTERPRETED)
        here = (state_row < batch) & (k_first < H)
        state = eight_states(state_at, state_offsets, here, SPLITS, CHUNK)
        if BM >= 16:
            here = (state_row + 8 < batch) & (k_first < H)
            second = eight_states(state_at + 8 * H, state_offsets, here, SPLITS, CHUNK)
        if BM >= 32:
            here = (state_row + 16 < batch) & (k_first < H)
            third = eight_states(state_at + 16 * H, state_offsets, here, SPLITS, CHUNK)
            here = (state_row + 24 < batch) & (k_first < H)
            fourth = eight_states(state_at + 24 * H, state_offsets, here, SPLITS, CHUNK)
        partial = dot(held, state, PRECISION, INTERPRETED)
        if BM >= 16:
            partial = side_by_side(partial, dot(held, second, PRECISION, INTERPRETED), SPLITS, 4 * BU, 8)
        if BM >= 32:
            more = dot(held, third, PRECISION, INTERPRETED)
            more = side_by_side(more, dot(held, fourth, PRECISION, INTERPRETED), SPLITS, 4 * BU, 8)
            partial = side_by_side(partial, more, SPLITS, 4 * BU, 16)
        r_in, r_forget, r_candidate, r_out = gates_of(partial, SPLITS, BM, BU)
        in_gate = sigmoid(p_in + r_in)
        forget_gate = sigmoid(p_forget + r_forget)
        candidate = tanh(p_candidate + r_candidate)
        out_gate = sigmoid(p_out + r_out)
        cell = forget_gate * cell + in_gate * candidate
        output = out_gate * tanh(cell)
        tl.store(hidden + (step + 1) * layer + offsets, rounded(output, hidden.dtype.element_ty, INTERPRETED), mask=mask)
        arrive(counters + step)
        tl.store(memory + step * layer + offsets, cell, mask=mask)
        if SAVE:
            saved = gates + step * (4 * layer)
            tl.store(saved + gate_offsets, rounded(in_gate, gates.dtype.element_ty, INTERPRETED), mask=mask)
            tl.store(saved + gate_offsets + H, rounded(forget_gate, gates.dtype.element_ty, INTERPRETED), mask=mask)
            tl.store(saved + gate_offsets + 2 * H, rounded(candidate, gates.dtype.element_ty, INTERPRETED), mask=mask)
            tl.store(saved + gate_offsets + 3 * H, rounded(out_gate, gates.dtype.element_ty, INTERPRETED), mask=mask)
        step += 1


@triton.jit(do_not_specialize=SIZES)
def backward_program(
    grad_hidden,
    weight,
    memory0,
    memory,
    gates,
    grad_projected,
    carry,
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
    counters += group * steps
    grad_cell = tl.load(carry + offsets, mask=mask & (last_step < steps), other=0.0)
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
        out = grad_projected + step * (4 * layer)
        tl.store(out + gate_offsets, rounded(grad_cell * to_in, out.dtype.element_ty, INTERPRETED), mask=mask)
        tl.store(out + gate_offsets + H, rounded(grad_cell * to_forget, out.dtype.element_ty, INTERPRETED), mask=mask)
        tl.store(out + gate_offsets + 2 * H, rounded(grad_cell * to_candidate, out.dtype.element_ty, INTERPRETED), mask=mask)
        tl.store(out + gate_offsets + 3 * H, rounded(grad * to_out, out.dtype.element_ty, INTERPRETED), mask=mask)
        arrive(counters + step)
        grad_cell *= forget_gate
        step -= 1
    tl.store(carry + offsets, grad_cell, mask=mask & (first_step > 0))
