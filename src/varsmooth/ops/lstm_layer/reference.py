"""Layers of an LSTM as a plain loop over time: the definition, which the kernel is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Weights(NamedTuple):
    """One layer: ``ih`` [4 * H, inputs], ``hh`` [4 * H, H] and ``bias`` [4 * H], the gates in torch's order i, f, g, o."""

    ih: Tensor
    hh: Tensor
    bias: Tensor


def lstm_layers(
    layers: Sequence[Weights], inputs: Tensor, hidden0: Tensor, memory0: Tensor, updates: Sequence[Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """See ``varsmooth.ops.lstm_layer``."""
    finals = []
    states = zip(hidden0.detach().to(inputs.dtype), memory0.detach().to(_at_least_float(inputs)), strict=True)
    factors: Sequence[Tensor | None] = [None] * len(layers) if updates is None else updates
    for weights, (hidden, memory), factor in zip(layers, states, factors, strict=True):
        inputs, final_memory = _layer(weights, inputs, hidden, memory, factor)
        finals.append((inputs[-1].detach().to(final_memory.dtype), final_memory.detach()))
    last_hidden, last_memory = (torch.stack(parts) for parts in zip(*finals, strict=True))
    return inputs, (last_hidden, last_memory)


def _layer(weights: Weights, inputs: Tensor, hidden: Tensor, memory: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    outputs = []
    for time, projected in enumerate(F.linear(inputs, weights.ih, weights.bias)):
        gates = projected.to(memory.dtype) + (hidden @ weights.hh.t()).to(memory.dtype)
        hidden, memory = _step(gates, memory, inputs.dtype, None if factor is None else factor[time].detach())
        outputs.append(hidden)
    return torch.stack(outputs), memory


def _at_least_float(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _step(gates: Tensor, memory: Tensor, dtype: torch.dtype, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=-1)
    candidate = candidate.tanh() if factor is None else candidate.tanh() * factor.to(memory.dtype)
    memory = forget_gate.sigmoid() * memory + in_gate.sigmoid() * candidate
    return (out_gate.sigmoid() * memory.tanh()).to(dtype), memory
