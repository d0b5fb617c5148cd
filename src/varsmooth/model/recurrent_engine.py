"""The fast ways to run a window on a GPU, from weights that were drawn into one flat buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor

from varsmooth.errors import InputError, check_choice
from varsmooth.model.recurrent_run import Cell, State, call_fused
from varsmooth.ops.draw_matrices import DrawnWeights
from varsmooth.ops.lstm_layer import Weights, lstm_layers, supported

Engine = Literal["auto", "persistent", "cudnn"]
"""``persistent`` keeps a layer's recurrent matrix on chip for the whole window; ``auto`` takes it where it can."""

_engine: ContextVar[Engine] = ContextVar("recurrent_engine", default="auto")


@contextmanager
def recurrent_engine(engine: Engine) -> Iterator[None]:
    """Within this block training windows run on ``engine``; the choice is made in the forward pass."""
    check_choice("engine", engine, get_args(Engine))
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)


def chosen_engine(cell: Cell, weight: Tensor, dtype: torch.dtype, inputs: Tensor, state: State) -> Engine:
    """Return ``persistent`` or ``cudnn`` for a training window [T, B, width] whose recurrent matrix is drawn as ``dtype``."""
    asked = _engine.get()
    if asked == "cudnn":
        return "cudnn"
    # It is an LSTM's alone, and takes the incoming state for a constant.
    possible = cell == "lstm" and not any(part.requires_grad for part in state)
    _, batch, width = inputs.shape
    if possible and supported(weight, batch, dtype):
        return "persistent"
    if asked == "persistent":
        raise InputError(f"the persistent engine cannot run this {cell}: batch {batch}, width {width}, {dtype}")
    return "cudnn"


def run_persistent(
    drawn: DrawnWeights, inputs: Tensor, state: State, updates: Sequence[Tensor] | None = None
) -> tuple[Tensor, State]:
    """Run an LSTM layer by layer; the state that is returned is fp32 whatever the inputs, and carries no gradient.

    ``updates`` [T, B, width] for each layer multiply the candidates of its cells.
    """
    layers = [Weights(ih, hh, bias) for ih, hh, bias, _ in drawn.layers()]
    with torch.autocast("cuda", enabled=False):
        hidden, memory = state
        return lstm_layers(layers, inputs.to(layers[0].hh.dtype), hidden, memory, updates)


def run_cudnn(cell: Cell, drawn: DrawnWeights, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """Run all layers in one call of cuDNN, which finds the weights laid out as it wants them."""
    dtype = drawn.matrices[0].dtype
    weights = [tensor for layer in drawn.layers() for tensor in layer]
    # Autocast runs cuDNN's recurrent kernels in float16, whatever type it was asked for.
    with torch.autocast("cuda", enabled=False):
        return call_fused(cell, weights, inputs.to(dtype), tuple(part.contiguous().to(dtype) for part in state))
