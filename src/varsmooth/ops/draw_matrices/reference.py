"""The eager definition of a draw of the recurrent matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.ops.draw_matrices.dropout import Dropout, column_factors


class DrawnWeights(NamedTuple):
    """Matrices ih_0, hh_0, ih_1, ... and two biases for each layer, of which the second is zeros."""

    matrices: list[Tensor]
    biases: list[Tensor]

    def layers(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return ih, hh and both biases of each layer."""
        return list(zip(self.matrices[::2], self.matrices[1::2], self.biases[::2], self.biases[1::2], strict=True))


def draw_matrices(
    matrices: list[Tensor], biases: list[Tensor], dropout: Dropout, key: DrawKey, dtype: torch.dtype
) -> DrawnWeights:
    """See ``varsmooth.ops.draw_matrices``."""
    drawn = list(matrices)
    if dropout.rate:
        factors = column_factors(dropout, key, matrices)
        drawn[1:] = [matrix * factor for matrix, factor in zip(matrices[1:], factors, strict=True)]
    pairs = [(bias.to(dtype), torch.zeros_like(bias, dtype=dtype, requires_grad=False)) for bias in biases]
    return DrawnWeights([matrix.to(dtype) for matrix in drawn], [bias for pair in pairs for bias in pair])
