"""The program of the forward pass."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from varsmooth.ops.lstm_layer.parts import (
    SIZES,
    arrive,
    dot,
    eight_states,
    gates_of,
    rounded,
    side_by_side,
    sigmoid,
    tanh,
    wait,
)


@triton.jit(do_not_specialize=SIZES)
def forward_program(
    projected,
    weight,
    hidden0,
    memory0,
    update,
    hidden,
    memory,
    gates,
    final_hidden,
    final_memory,
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
    row = group * BM + tl.arange(0, BM)[None, :]
    unit = block * BU + tl.arange(0, BU)[:, None]
    mask = row < batch
    if H % BU != 0:
        mask = mask & (unit < H)
    offsets = row * H + unit
    gate_offsets = row * (4 * H) + unit
    layer = batch.to(tl.int64) * H
    counters += group * (steps + 1)
    if first_step < 0:  # ahead of the weights: while they are read, the others' part of the state arrives
        state = tl.load(hidden0 + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(hidden + offsets, rounded(state, hidden.dtype.element_ty, INTERPRETED), mask=mask)
        arrive(counters)

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

    memory_at = memory + (first_step - 1) * layer
    if first_step <= 0:
        memory_at = memory0
    cell = tl.load(memory_at + offsets, mask=mask, other=0.0)
    step = tl.maximum(first_step, 0)
    while step < last_step:
        inputs = projected + step * (4 * layer)
        p_in = tl.load(inputs + gate_offsets, mask=mask, other=0.0).to(tl.float32)
        p_forget = tl.load(inputs + gate_offsets + H, mask=mask, other=0.0).to(tl.float32)
        p_candidate = tl.load(inputs + gate_offsets + 2 * H, mask=mask, other=0.0).to(tl.float32)
        p_out = tl.load(inputs + gate_offsets + 3 * H, mask=mask, other=0.0).to(tl.float32)
        if update is not None:
            factor = tl.load(update + step * layer + offsets, mask=mask, other=0.0)
        wait(counters + step, unit_blocks, INTERPRETED)
        state_at = hidden + step * layer
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
        used = candidate
        if update is not None:
            used = candidate * factor
        cell = forget_gate * cell + in_gate * used
        output = out_gate * tanh(cell)
        tl.store(hidden + (step + 1) * layer + offsets, rounded(output, hidden.dtype.element_ty, INTERPRETED), mask=mask)
        arrive(counters + step + 1)
        tl.store(memory + step * layer + offsets, cell, mask=mask)
        if SAVE:
            saved = gates + step * (4 * layer)
            tl.store(saved + gate_offsets, rounded(in_gate, gates.dtype.element_ty, INTERPRETED), mask=mask)
            tl.store(saved + gate_offsets + H, rounded(forget_gate, gates.dtype.element_ty, INTERPRETED), mask=mask)
            tl.store(saved + gate_offsets + 2 * H, rounded(candidate, gates.dtype.element_ty, INTERPRETED), mask=mask)
            tl.store(saved + gate_offsets + 3 * H, rounded(out_gate, gates.dtype.element_ty, INTERPRETED), mask=mask)
        step += 1
    if last_step == steps:
        last = tl.load(hidden + steps * layer + offsets, mask=mask, other=0.0, cache_modifier=".cg")
        tl.store(final_hidden + offsets, last.to(tl.float32), mask=mask)
        tl.store(final_memory + offsets, cell, mask=mask)
