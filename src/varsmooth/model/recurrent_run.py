"""Two ways to run drawn layers over a window, with one signature: one fused call, and a loop over time steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from varsmooth.ops.backend import gpu_autocast_dtype

Cell = Literal["lstm", "gru"]
State: TypeAlias = tuple[Tensor, ...]
"""(h, c) of an LSTM, (h,) of a GRU; h comes first."""

GATES: dict[Cell, int] = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class DrawnMatrix:
    """One draw of a matrix, ``weight * factor + noise``; a factor [B, width] means a matrix for each sequence."""

    weight: Tensor
    factor: Tensor | None = None
    noise: Tensor | None = None

    def value(self) -> Tensor:
        """Return the matrix itself; for factors that all sequences share."""
        value = self.weight if self.factor is None else self.weight * self.factor
        return value if self.noise is None else value + self.noise

    def apply(self, vectors: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the products of each sequence's matrix with its vectors [..., B, width], no matrix being built."""
        kept = vectors if self.factor is None else vectors * self.factor
        product = F.linear(kept, self.weight, bias)
        return product if self.noise is None else product + F.linear(vectors, self.noise)


@dataclass(frozen=True)
class DrawnLayer:
    """One draw of a layer's parameters; ``update`` [T, B, width] multiplies the candidates."""

    ih: DrawnMatrix
    hh: DrawnMatrix
    bias: Tensor
    zero_bias: Tensor
    update: Tensor | None = None


def run_fused(cell: Cell, layers: Sequence[DrawnLayer], inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """Run all layers in one call of torch's fused kernel (cuDNN on a GPU); factors must be shared by all sequences."""
    weights = [tensor for layer in layers for tensor in (layer.ih.value(), layer.hh.value(), layer.bias, layer.zero_bias)]
    state = tuple(part.contiguous() for part in state)
    if not inputs.is_cuda:
        if not torch.is_autocast_enabled("cpu") or cell != "lstm" or has_bfloat16_lstm():
            return call_fused(cell, weights, inputs, state)
        with torch.autocast("cpu", enabled=False):
            return call_fused(cell, [it.float() for it in weights], inputs.float(), tuple(part.float() for part in state))
    dtype = compute_dtype(inputs)
    weights, state = [weight.to(dtype) for weight in weights], tuple(part.to(dtype) for part in state)
    # Autocast runs cuDNN's recurrent kernels in float16, whatever type it was asked for.
    with torch.autocast("cuda", enabled=False), _quiet_about_compaction():
        return call_fused(cell, weights, inputs.to(dtype), state)


@lru_cache
def has_bfloat16_lstm() -> bool:
    """Whether torch's LSTM, which is oneDNN's, runs in bfloat16 on this CPU; without AVX-512 it fails, with no fallback."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def compute_dtype(inputs: Tensor) -> torch.dtype:
    """Return the type that the layers run in: autocast's on a GPU, else that of the inputs."""
    return gpu_autocast_dtype(inputs) or inputs.dtype


def call_fused(cell: Cell, weights: list[Tensor], inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """Call torch's fused kernel on ih, hh and two biases of each layer, all of the inputs' type and contiguous."""
    options = (True, len(weights) // 4, 0.0, torch.is_grad_enabled(), False, False)
    if cell == "lstm":
        outputs, *final = torch.lstm(inputs, state, weights, *options)
    else:
        outputs, *final = torch.gru(inputs, state[0], weights, *options)
    return outputs, tuple(final)


def run_stepwise(cell: Cell, layers: Sequence[DrawnLayer], inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """Run layer by layer and step by step, which lets each sequence have its own matrices and each step its own update."""
    finals = []
    for number, layer in enumerate(layers):
        inputs, final = _run_layer(STEPS[cell], layer, inputs, tuple(part[number] for part in state))
        finals.append(final)
    return inputs, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))


def _run_layer(step: Step, layer: DrawnLayer, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    outputs = []
    for time, projected in enumerate(layer.ih.apply(inputs, layer.bias)):
        state = step(projected, layer.hh.apply(state[0]), state, None if layer.update is None else layer.update[time])
        outputs.append(state[0])
    return torch.stack(outputs), state


def _lstm_step(projected: Tensor, recurrent: Tensor, state: State, update: Tensor | None) -> State:
    in_gate, forget_gate, candidate, out_gate = (projected + recurrent).chunk(4, dim=-1)
    candidate = _dropped(candidate.tanh(), update)
    memory = forget_gate.sigmoid() * state[1] + in_gate.sigmoid() * candidate
    return out_gate.sigmoid() * memory.tanh(), memory


def _gru_step(projected: Tensor, recurrent: Tensor, state: State, update: Tensor | None) -> State:
    reset, keep, candidate = projected.chunk(3, dim=-1)
    recurrent_reset, recurrent_keep, recurrent_candidate = recurrent.chunk(3, dim=-1)
    reset, keep = (reset + recurrent_reset).sigmoid(), (keep + recurrent_keep).sigmoid()
    candidate = _dropped((candidate + reset * recurrent_candidate).tanh(), update)
    return ((1 - keep) * candidate + keep * state[0],)


def _dropped(candidate: Tensor, update: Tensor | None) -> Tensor:
    return candidate if update is None else candidate * update


Step: TypeAlias = Callable[[Tensor, Tensor, State, "Tensor | None"], State]
STEPS: dict[Cell, Step] = {"lstm": _lstm_step, "gru": _gru_step}


@contextmanager
def _quiet_about_compaction() -> Iterator[None]:
    """Drawn weights are fresh tensors, which cuDNN compacts at each call and warns about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield
