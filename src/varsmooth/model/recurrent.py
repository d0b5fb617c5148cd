"""The recurrent layers between the two embedding tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor, nn

from varsmooth.draws import DrawKey, Site
from varsmooth.errors import InputError, check_choice
from varsmooth.model.recurrent_engine import chosen_engine, run_cudnn, run_persistent
from varsmooth.model.recurrent_noise import RecurrentKind, RecurrentNoise, RecurrentScope
from varsmooth.model.recurrent_run import (
    GATES,
    Cell,
    DrawnLayer,
    DrawnMatrix,
    State,
    compute_dtype,
    run_fused,
    run_stepwise,
)
from varsmooth.ops.draw_matrices import DrawnWeights, Dropout, draw_matrices, has_kernel


class RecurrentStack(nn.Module):
    """``layers`` LSTM or GRU layers whose input, hidden and output sizes are all ``width``, with one bias per gate.

    Gates are ordered as torch orders them. ``dropout``, ``dropout_kind``, ``dropout_scope`` and ``variance`` are those of
    ``RecurrentNoise``; they act only where ``forward`` is given a key.
    """

    zero_bias: Tensor

    def __init__(
        self,
        cell: Cell,
        width: int,
        layers: int,
        *,
        dropout: float = 0.0,
        dropout_kind: RecurrentKind = "rows",
        dropout_scope: RecurrentScope = "batch",
        variance: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("cell", cell, get_args(Cell))
        for name, size in (("width", width), ("layers", layers)):
            if size < 1:
                raise InputError(f"{name} must be at least 1, got {size}")
        self.cell: Cell = cell
        self.width = width
        self.layers = layers
        self.noise = RecurrentNoise(dropout, dropout_kind, dropout_scope, variance)
        rows = GATES[cell] * width
        self.weight_ih = nn.ParameterList(torch.empty(rows, width) for _ in range(layers))
        self.weight_hh = nn.ParameterList(torch.empty(rows, width) for _ in range(layers))
        self.bias = nn.ParameterList(torch.empty(rows) for _ in range(layers))
        # The fused kernels ask for a second bias, which would be redundant as a parameter.
        self.register_buffer("zero_bias", torch.zeros(rows), persistent=False)
        self.reset_parameters()

    @property
    def fused(self) -> bool:
        """Whether one fused call can run a window in training; in prediction it always does."""
        return self.noise.fused

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights uniformly within 1/sqrt(width) and set the biases to 0, the LSTM's forget bias to 1.

        Drawn on the CPU (so must ``generator`` be), so that every device starts alike.
        """
        bound = self.width**-0.5
        for weight in self._matrices():
            weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
        for bias in self.bias:
            bias.zero_()
            if self.cell == "lstm":
                bias[self.width : 2 * self.width] = 1

    def initial_state(self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32) -> State:
        """Return zeros: (h, c) for an LSTM, (h,) for a GRU, each [layers, batch, width]."""
        parts = 2 if self.cell == "lstm" else 1
        return tuple(torch.zeros(self.layers, batch, self.width, device=device, dtype=dtype) for _ in range(parts))

    def forward(self, inputs: Tensor, state: State, key: DrawKey | None, first_sequence: int = 0) -> tuple[Tensor, State]:
        """Run inputs [T, B, width] from ``state`` and return the outputs [T, B, width] and the state after them.

        ``key`` None means prediction: nothing is dropped, nothing added. ``first_sequence`` is the place of the first column in
        the global batch. Training on a GPU may return the state in fp32 and without a gradient; see ``run_persistent``.
        """
        self._check_shapes(inputs, state)
        fused, on_kernels, dtype = key is None or self.fused, has_kernel(self.weight_hh[0]), compute_dtype(inputs)
        # Predictions stay with cuDNN, so that their figures do not depend on which engine trained.
        if on_kernels and key is not None and self._trains_persistently(inputs, state, dtype):
            updates = self._updates(inputs, key, first_sequence)
            return run_persistent(self._flat_weights(key, dtype), inputs, state, updates)
        if on_kernels and fused:
            return run_cudnn(self.cell, self._flat_weights(key, dtype), inputs, state)
        layers = self._plain_layers() if key is None else self._drawn_layers(inputs, key, first_sequence)
        return (run_fused if fused else run_stepwise)(self.cell, layers, inputs, state)

    def extra_repr(self) -> str:
        return f"{self.cell}, width={self.width}, layers={self.layers}, {self.noise}"

    def _trains_persistently(self, inputs: Tensor, state: State, dtype: torch.dtype) -> bool:
        shares = self.noise.shares_matrices
        return shares and chosen_engine(self.cell, self.weight_hh[0], dtype, inputs, state) == "persistent"

    def _matrices(self) -> list[Tensor]:
        return [matrix for pair in zip(self.weight_ih, self.weight_hh, strict=True) for matrix in pair]

    def _plain_layers(self) -> list[DrawnLayer]:
        return self._joined([DrawnMatrix(matrix) for matrix in self._matrices()], [None] * self.layers)

    def _drawn_layers(self, inputs: Tensor, key: DrawKey, first_sequence: int) -> list[DrawnLayer]:
        drawn = self._drawn_matrices(key, _sequences(inputs, first_sequence))
        return self._joined(drawn, self._updates(inputs, key, first_sequence) or [None] * self.layers)

    def _drawn_matrices(self, key: DrawKey, sequences: Tensor) -> list[DrawnMatrix]:
        matrices = self._matrices()
        factors, gaussians = self.noise.matrix_factors(key, matrices, sequences), self.noise.gaussians(key, matrices)
        return [DrawnMatrix(*parts) for parts in zip(matrices, factors, gaussians, strict=True)]

    def _updates(self, inputs: Tensor, key: DrawKey, first_sequence: int) -> list[Tensor] | None:
        """What multiplies the candidates of each layer's cells; None where nothing does."""
        if not self.noise.drops_updates:
            return None
        return self.noise.update_factors(key, self._matrices(), _sequences(inputs, first_sequence), steps=len(inputs))

    def _flat_weights(self, key: DrawKey | None, dtype: torch.dtype) -> DrawnWeights:
        """Return the weights of a draw that all sequences share in one buffer.

        What drops no more than columns is drawn on the way into it.
        """
        matrices, biases = self._matrices(), list(self.bias)
        if key is not None and self.noise.columns_only:
            return draw_matrices(matrices, biases, self.noise.dropping, key.at(Site.RECURRENT), dtype)
        if key is not None:
            shared = torch.zeros(1, dtype=torch.int64, device=matrices[0].device)
            matrices = [matrix.value() for matrix in self._drawn_matrices(key, shared)]
        return draw_matrices(matrices, biases, Dropout(0.0), DrawKey(0), dtype)

    def _joined(self, drawn: list[DrawnMatrix], updates: Sequence[Tensor | None]) -> list[DrawnLayer]:
        parts = zip(drawn[::2], drawn[1::2], self.bias, updates, strict=True)
        return [DrawnLayer(ih, hh, bias, self.zero_bias, update) for ih, hh, bias, update in parts]

    def _check_shapes(self, inputs: Tensor, state: State) -> None:
        if inputs.dim() != 3 or inputs.shape[2] != self.width or inputs.numel() == 0:
            raise InputError(f"inputs must be [T, B, width = {self.width}] and not empty, got shape {tuple(inputs.shape)}")
        expected = [(self.layers, inputs.shape[1], self.width)] * (2 if self.cell == "lstm" else 1)
        if [tuple(part.shape) for part in state] != expected:
            raise InputError(f"state must have shapes {expected}, got {[tuple(part.shape) for part in state]}")


def _sequences(inputs: Tensor, first: int) -> Tensor:
    """The places of a window's columns in the global batch."""
    return torch.arange(first, first + inputs.shape[1], device=inputs.device)
