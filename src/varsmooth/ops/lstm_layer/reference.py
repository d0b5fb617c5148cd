"""One LSTM layer as a plain loop over time: the definition, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_layer(projected: Tensor, weight: Tensor, hidden0: Tensor, memory0: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden [T, B, H] and the last memory [B, H] in fp32; the gates are torch's, in the order i, f, g, o."""
    hidden, memory = hidden0.detach().to(projected.dtype), memory0.detach().to(_at_least_float(projected))
    outputs = []
    for step in projected:
        hidden, memory = _step(step.to(memory.dtype) + (hidden @ weight.t()).to(memory.dtype), memory, projected.dtype)
        outputs.append(hidden)
    return torch.stack(outputs), memory.detach()


def _at_least_float(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _step(gates: Tensor, memory: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=-1)
    memory = forget_gate.sigmoid() * memory + in_gate.sigmoid() * candidate.tanh()
    return (out_gate.sigmoid() * memory.tanh()).to(dtype), memory
