"""The matrices of a recurrent stack, drawn with dropped columns and laid out as cuDNN wants them."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.ops.backend import kernels_for
from varsmooth.ops.draw_matrices import reference
from varsmooth.ops.draw_matrices.dropout import Dropout, column_factors
from varsmooth.ops.draw_matrices.reference import DrawnWeights

__all__ = ["DrawnWeights", "Dropout", "column_factors", "draw_matrices", "has_kernel"]


def has_kernel(weight: Tensor) -> bool:
    """Whether the matrices are drawn by the kernel; it computes in fp32, which is no way to treat doubles."""
    return kernels_for(weight) and weight.dtype != torch.float64


def draw_matrices(
    matrices: list[Tensor], biases: list[Tensor], dropout: Dropout, key: DrawKey, dtype: torch.dtype
) -> DrawnWeights:
    """Return one draw of a stack's weights in ``dtype``: whole columns dropped in every matrix but the first.

    ``matrices`` are ih_0, hh_0, ih_1, ... [rows, width]; ``biases`` are one per layer [rows]. ``key`` is used at its own site.
    Where the kernel runs, all results are views of one buffer in cuDNN's layout, so that it need not compact them.
    """
    if not has_kernel(matrices[0]):
        return reference.draw_matrices(matrices, biases, dropout, key, dtype)
    from varsmooth.ops.draw_matrices import kernel

    return kernel.draw_matrices(matrices, biases, dropout, key, dtype)
