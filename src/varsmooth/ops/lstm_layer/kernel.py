"""Layers of an LSTM as two persistent kernels each, which hold the recurrent matrix on chip for the whole window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from varsmooth.ops.lstm_layer.backward import backward_program
from varsmooth.ops.lstm_layer.blocks import Blocks, choose, gpu_of, padded
from varsmooth.ops.lstm_layer.forward import forward_program
from varsmooth.ops.lstm_layer.reference import Weights

INTERPRETED = not isinstance(forward_program, triton.JITFunction)


class State(NamedTuple):
    """Hidden and memory of one layer [B, H], or of all [layers, B, H]."""

    hidden: Tensor
    memory: Tensor

    def of_layer(self, number: int) -> State:
        return State(self.hidden[number], self.memory[number])


class Plan(NamedTuple):
    """What a layer's two kernels need beside their inputs."""

    blocks: Blocks
    came_in: State
    goes_out: State
    """Filled by the forward kernel, in fp32"""
    counters: Tensor
    """Zeros [2, places]: for the forward and the backward kernel"""
    update: Tensor | None
    """What multiplies the candidates, fp32 [T, B, H]"""


def lstm_layers(
    layers: Sequence[Weights],
    inputs: Tensor,
    hidden0: Tensor,
    memory0: Tensor,
    updates: Sequence[Tensor] | None = None,
    *,
    blocks: Blocks | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """See ``varsmooth.ops.lstm_layer``; ``blocks`` are for tests and timing."""
    steps, batch, _ = inputs.shape
    width = layers[0].hh.shape[1]
    if blocks is None:
        blocks = choose(batch, width, inputs.element_size(), gpu_of(inputs))
    if blocks is None:
        raise ValueError(f"an LSTM layer of {width} units and {batch} sequences does not fit on the GPU at once")
    came_in = State(hidden0.detach().contiguous(), memory0.detach().float().contiguous())
    final = State(torch.empty_like(came_in.memory), torch.empty_like(came_in.memory))
    counters = new_counters(blocks, steps, batch, width, len(layers), inputs.device)
    for number, weights in enumerate(layers):
        update = None if updates is None else updates[number].detach().float().contiguous()
        plan = Plan(blocks, came_in.of_layer(number), final.of_layer(number), counters[number], update)
        inputs = _run_layer(inputs, weights, plan)
    return inputs, final


def _run_layer(inputs: Tensor, weights: Weights, plan: Plan) -> Tensor:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (inputs, *weights)):
        outputs: Tensor = _Layer.apply(inputs, *weights, plan)
        return outputs
    return run_forward(F.linear(inputs, weights.ih, weights.bias), weights.hh, plan, save=False)[0][1:]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ih: Tensor, hh: Tensor, bias: Tensor, plan: Plan) -> Tensor:
        hidden, memory, gates = run_forward(F.linear(inputs, ih, bias), hh, plan, save=True)
        ctx.save_for_backward(inputs, ih, hh, plan.came_in.memory, hidden, memory, gates, plan.update)
        ctx.blocks, ctx.counters, ctx.counted = plan.blocks, plan.counters[1], False
        return hidden[1:]

    @staticmethod
    def backward(ctx: Any, grad_hidden: Tensor) -> tuple[Tensor | None, ...]:
        inputs, ih, hh, memory0, hidden, memory, gates, update = ctx.saved_tensors
        # A run uses its counters up; another one, through a graph that was retained, needs its own.
        counters = torch.zeros_like(ctx.counters) if ctx.counted else ctx.counters
        ctx.counted = True
        grad_gates, grad_bias = run_backward(grad_hidden, hh, memory0, memory, gates, update, ctx.blocks, counters)
        by_column = grad_gates.flatten(0, 1).t()
        wanted = ctx.needs_input_grad
        return (
            grad_gates @ ih if wanted[0] else None,
            by_column @ inputs.flatten(0, 1) if wanted[1] else None,
            # The hidden states before each step: one product for the whole window.
            by_column @ hidden[:-1].flatten(0, 1) if wanted[2] else None,
            grad_bias if wanted[3] else None,
            None,
        )


def run_forward(projected: Tensor, hh: Tensor, plan: Plan, *, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden [T + 1, B, H], the carried state first, memory [T, B, H], and gates [T, B, 4 * H] (none without save)."""
    steps, batch, columns = projected.shape
    width, blocks = columns // 4, plan.blocks
    hidden = projected.new_empty(steps + 1, batch, width)
    memory = projected.new_empty(steps, batch, width, dtype=torch.float32)
    gates = projected.new_empty((steps, batch, columns) if save else (0,))
    inputs = (projected.detach().contiguous(), hh.detach().contiguous(), *plan.came_in, plan.update)
    tensors = (*inputs, hidden, memory, gates, *plan.goes_out, plan.counters[0])
    for first, last in _forward_ranges(steps):
        forward_program[(blocks.programs(batch, width),)](
            *tensors, first, last, steps, batch, **_tiles(blocks, projected, width), SAVE=save, **_launch(blocks)
        )
    return hidden, memory, gates


def run_backward(
    grad_hidden: Tensor,
    hh: Tensor,
    memory0: Tensor,
    memory: Tensor,
    gates: Tensor,
    update: Tensor | None,
    blocks: Blocks,
    counters: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the projected inputs and of the bias."""
    steps, batch, width = grad_hidden.shape
    grad_gates, grad_bias = torch.empty_like(gates), gates.new_empty(4 * width)
    carry, bias_sums = memory.new_empty(batch, width), memory.new_empty(blocks.groups(batch), 4 * width)
    inputs = (grad_hidden.contiguous(), hh.detach().contiguous(), memory0, memory, gates, update)
    tensors = (*inputs, grad_gates, grad_bias, carry, bias_sums, counters)
    groups = triton.next_power_of_2(blocks.groups(batch))
    for first, last in _backward_ranges(steps):
        backward_program[(blocks.programs(batch, width),)](
            *tensors, first, last, steps, batch, **_tiles(blocks, gates, width), GROUPS=groups, **_launch(blocks)
        )
    return grad_gates, grad_bias


def new_counters(blocks: Blocks, steps: int, batch: int, width: int, layers: int, device: torch.device) -> Tensor:
    """For each group of sequences and each state, how many programs have done it; then for each unit block, how many groups."""
    places = blocks.groups(batch) * (steps + 1) + blocks.unit_blocks(width)
    return torch.zeros(layers, 2, places, dtype=torch.int32, device=device)


def _forward_ranges(steps: int) -> list[tuple[int, int]]:
    """One launch for the whole window, step -1 being the carried state.

    The interpreter, whose programs run one after another, needs a launch for each step.
    """
    return [(step, step + 1) for step in range(-1, steps)] if INTERPRETED else [(-1, steps)]


def _backward_ranges(steps: int) -> list[tuple[int, int]]:
    return [(step, step + 1) for step in reversed(range(steps))] if INTERPRETED else [(0, steps)]


def _tiles(blocks: Blocks, window: Tensor, width: int) -> dict[str, Any]:
    splits = blocks.splits(width)
    return {
        "H": width,
        "BM": blocks.rows,
        "BU": blocks.units,
        "SPLITS": splits,
        "CHUNK": padded(width) // splits,
        "PRECISION": "tf32x3" if window.dtype == torch.float32 else "tf32",
        "INTERPRETED": INTERPRETED,
    }


def _launch(blocks: Blocks) -> dict[str, Any]:
    # num_stages: a pipelined load would read a step's state before it is there. Cooperative: all programs run at once or none.
    return {"num_warps": blocks.warps, "num_stages": 1, "launch_cooperative_grid": not INTERPRETED}
