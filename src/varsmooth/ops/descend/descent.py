"""What one descent works on: the tensors that every step changes, and what stays the same between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

BETA2 = 0.999
EPSILON = 1e-8


def bias_correction(step: int) -> float:
    """Return what makes up for second moments that started at 0, at the ``step``-th step, counted from 1."""
    return 1 / (1 - BETA2**step)


@dataclass(frozen=True, eq=False)
class Descent:
    """Parameters, their second moments and (or none) moving averages, all float32 and contiguous, alike in order and shape.

    ``row_weights`` holds the penalty's c, one per row, or None for all ones. Only the tensors' values ever change.
    """

    parameters: list[Tensor]
    squares: list[Tensor]
    row_weights: list[Tensor | None]
    averages: list[Tensor]
    l2: float
    clip: float

    @classmethod
    def start(
        cls,
        parameters: Sequence[Tensor],
        row_weights: Sequence[Tensor | None],
        *,
        l2: float,
        clip: float,
        averaged: bool = False,
    ) -> Descent:
        """Return a descent before its first step: second moments 0, averages (if any) equal to the parameters."""
        squares = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
        averages = [parameter.detach().clone() for parameter in parameters] if averaged else []
        return cls(list(parameters), squares, list(row_weights), averages, l2, clip)

    def __post_init__(self) -> None:
        counts = {len(self.parameters), len(self.squares), len(self.row_weights), len(self.averages or self.parameters)}
        if counts != {len(self.parameters)} or not self.parameters:
            raise ValueError(
                "a descent needs one second moment, one entry of row weights and one average (or none) per parameter"
            )
        for i, parameter in enumerate(self.parameters):
            for tensor in (parameter, self.squares[i], *self.averages[i : i + 1]):
                if tensor.dtype != torch.float32 or tensor.shape != parameter.shape or not tensor.is_contiguous():
                    raise ValueError(f"parameter {i}, its second moment and average must be contiguous float32 of one shape")
            weights = self.row_weights[i]
            if weights is not None and (weights.dtype != torch.float32 or weights.shape != parameter.shape[:1]):
                raise ValueError(f"row weights {i} must be float32 [{', '.join(map(str, parameter.shape[:1]))}]")

    def checked(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return ``gradients``, contiguous, if there is one of its shape for every parameter."""
        if [gradient.shape for gradient in gradients] != [parameter.shape for parameter in self.parameters]:
            raise ValueError("the gradients must be alike to the parameters in number, order and shape")
        return [gradient.contiguous() for gradient in gradients]

    @cached_property
    def scratch(self) -> list[Tensor]:
        """Room for the full gradient, kept: on a CPU new pages for every step would take longer than filling them."""
        return [torch.empty_like(parameter, requires_grad=False) for parameter in self.parameters]
