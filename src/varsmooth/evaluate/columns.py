"""A stream laid out in columns that are read side by side, window after window (docs/maths.md, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.model import State

Step: TypeAlias = Callable[[Tensor, State, int], tuple[Tensor, State]]
"""Inputs [T, B], the state before them and the window's number (0: burn-in) to outputs [T, B, ...] and the state after them."""


@dataclass(frozen=True)
class Columns:
    """A stream of ``tokens`` in columns of equal length, the end of the last being padding."""

    tokens: int
    inputs: Tensor
    """[steps, B]: the token before each target, ``<eos>`` before the first"""
    targets: Tensor
    before: Tensor
    """[burn-in, B]: what a column reads first, for context; the first column has nothing before it and starts from zero"""

    @classmethod
    def cut(cls, ids: Tensor, eos_id: int, batch: int, burn_in: int, device: torch.device) -> Self:
        """Cut ``ids`` into at most ``batch`` columns, each of which reads ``burn_in`` tokens before it, a column at most."""
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}")
        if burn_in < 0:
            raise InputError(f"burn_in must be at least 0, got {burn_in}")
        tokens = ids.numel()
        if tokens == 0:
            raise InputError("there is no token to evaluate")
        steps = -(-tokens // min(batch, tokens))
        columns = -(-tokens // steps)
        stream = F.pad(ids.to(device).long(), (1, columns * steps - tokens), value=eos_id)
        inputs, targets = (part.view(columns, steps).T.contiguous() for part in (stream[:-1], stream[1:]))
        before = inputs[steps - min(burn_in, steps) :].roll(1, dims=1) if columns > 1 else inputs[:0]
        return cls(tokens, inputs, targets, before)

    @property
    def shape(self) -> tuple[int, int]:
        """Steps and columns."""
        return self.inputs.shape[0], self.inputs.shape[1]

    def warm(self, step: Step, state: State, window: int) -> State:
        """Return the state before each column's first token, from a zero ``state``."""
        if len(self.before) == 0:
            return state
        for inputs in torch.split(self.before, window):
            _, state = step(inputs, state, 0)
        for part in state:
            part[:, 0].zero_()
        return state

    def read(self, step: Step, state: State, window: int) -> Iterator[Tensor]:
        """Yield the outputs [T, B, ...] of each window in turn, from a zero ``state``."""
        state = self.warm(step, state, window)
        for index, inputs in enumerate(torch.split(self.inputs, window), start=1):
            outputs, state = step(inputs, state, index)
            yield outputs

    def in_order(self, figures: Tensor) -> Tensor:
        """Return figures [..., steps, B] as [..., tokens], in the order of the stream and without those of the padding."""
        return figures.transpose(-1, -2).flatten(-2)[..., : self.tokens]
