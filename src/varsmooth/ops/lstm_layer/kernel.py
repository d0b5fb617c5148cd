"""One LSTM layer as two persistent kernels, each holding its part of the recurrent matrix on chip for the whole window."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from varsmooth.ops.lstm_layer.blocks import Blocks, choose, padded, processors_of
from varsmooth.ops.lstm_layer.programs import backward_program, forward_program

INTERPRETED = not isinstance(forward_program, triton.JITFunction)


def lstm_layer(
    projected: Tensor, weight: Tensor, hidden0: Tensor, memory0: Tensor, blocks: tuple[Blocks, Blocks] | None = None
) -> tuple[Tensor, Tensor]:
    """Return hidden [T, B, H] and the last memory [B, H] in fp32; ``blocks`` (forward, backward) are for tests and timing."""
    _, batch, columns = projected.shape
    if blocks is None:
        blocks = choose(batch, columns // 4, projected.element_size(), processors_of(projected))
    if blocks is None:
        raise ValueError(f"an LSTM layer of {columns // 4} units and {batch} sequences does not fit on the GPU at once")
    if torch.is_grad_enabled() and (projected.requires_grad or weight.requires_grad):
        hidden, memory = _Layer.apply(projected, weight, hidden0, memory0, blocks)
        return hidden, memory
    hidden, memory, _ = run_forward(projected, weight, hidden0, memory0, blocks[0], save=False)
    return hidden[1:], memory[-1]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, hidden0: Tensor, memory0: Tensor, blocks: tuple[Blocks, Blocks]
    ) -> tuple[Tensor, Tensor]:
        hidden, memory, gates = run_forward(projected, weight, hidden0, memory0, blocks[0], save=True)
        ctx.save_for_backward(weight, hidden, memory0, memory, gates)
        ctx.blocks = blocks[1]
        last = memory[-1]
        ctx.mark_non_differentiable(last)
        return hidden[1:], last

    @staticmethod
    def backward(ctx: Any, grad_hidden: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, hidden, memory0, memory, gates = ctx.saved_tensors
        grad_projected = run_backward(grad_hidden, weight, memory0, memory, gates, ctx.blocks)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            # The hidden states before each step: one product for the whole window.
            grad_weight = grad_projected.flatten(0, 1).t() @ hidden[:-1].flatten(0, 1)
        return grad_projected, grad_weight, None, None, None


def run_forward(
    projected: Tensor, weight: Tensor, hidden0: Tensor, memory0: Tensor, blocks: Blocks, *, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden [T + 1, B, H], the carried state first, memory [T, B, H], and gates [T, B, 4 * H] (none without save)."""
    steps, batch, columns = projected.shape
    width = columns // 4
    projected, weight, memory0 = projected.detach().contiguous(), weight.detach().contiguous(), memory0.detach()
    hidden = projected.new_empty(steps + 1, batch, width)
    memory = projected.new_empty(steps, batch, width, dtype=torch.float32)
    gates = projected.new_empty((steps, batch, columns) if save else (0,))
    state = hidden0.detach().to(projected.dtype).contiguous(), memory0.float().contiguous()
    tensors = (projected, weight, *state, hidden, memory, gates, _counters(projected, blocks))
    for first, last in _ranges(steps):
        forward_program[(blocks.programs(batch, width),)](
            *tensors, first, last, steps, batch, **_tiles(blocks, projected, width), SAVE=save, **_launch(blocks)
        )
    return hidden, memory, gates


def run_backward(grad_hidden: Tensor, weight: Tensor, memory0: Tensor, memory: Tensor, gates: Tensor, blocks: Blocks) -> Tensor:
    """Return the gradient of ``projected``."""
    steps, batch, width = grad_hidden.shape
    grad_projected = torch.empty_like(gates)
    carry = memory.new_empty(batch, width)
    inputs = (grad_hidden.contiguous(), weight.detach().contiguous(), memory0.detach().float().contiguous(), memory, gates)
    tensors = (*inputs, grad_projected, carry, _counters(gates, blocks))
    for first, last in reversed(_ranges(steps)):
        backward_program[(blocks.programs(batch, width),)](
            *tensors, first, last, steps, batch, **_tiles(blocks, gates, width), **_launch(blocks)
        )
    return grad_projected


def _ranges(steps: int) -> list[tuple[int, int]]:
    """One launch for the whole window; the interpreter, whose programs run one after another, needs a launch for each step."""
    return [(step, step + 1) for step in range(steps)] if INTERPRETED else [(0, steps)]


def _counters(window: Tensor, blocks: Blocks) -> Tensor:
    """For each group of sequences and each step, how many of the group's programs have done it."""
    steps, batch, _ = window.shape
    return torch.zeros(blocks.groups(batch), steps, dtype=torch.int32, device=window.device)


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
