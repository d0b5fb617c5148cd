"""The loss of each target under a linear layer and a softmax, without the fp32 logits of the whole window."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.ops.backend import kernels_for
from varsmooth.ops.linear_cross_entropy import reference

__all__ = ["aligned_rows", "linear_cross_entropy"]

ALIGNMENT = 8


def linear_cross_entropy(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    replaced: Tensor | None = None,
    other: Tensor | None = None,
    words: int | None = None,
) -> Tensor:
    """Return the negative log-likelihood [N] (float32) of ``targets`` [N] under softmax(``hidden @ table.T + bias``).

    ``hidden`` [N, D], ``table`` [V, D], ``bias`` [V]. Where ``replaced`` [N] the target's logit is ``other`` [N] plus the
    target's own bias; no other logit changes. Differentiable, once, in ``hidden``, ``table``, ``bias`` and ``other``.
    ``words``: only the first so many rows of ``table`` count; a table padded to ``aligned_rows`` has the fastest products.
    """
    _check(hidden, table, bias, targets, replaced, other, words)
    if not kernels_for(hidden) or hidden.dtype == torch.float64 or not len(hidden):
        return reference.linear_cross_entropy(hidden, table[:words], bias, targets, replaced, other)
    from varsmooth.ops.linear_cross_entropy import kernel  # late: Triton may be missing where it is not needed

    dtype = _product_dtype(hidden)
    return kernel.linear_cross_entropy(hidden.to(dtype), table.to(dtype), bias, targets, replaced, other, words)


def aligned_rows(words: int) -> int:
    """Return how many rows a table needs for the tensor cores' widest loads and stores: three times as fast as without."""
    return -(-words // ALIGNMENT) * ALIGNMENT


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """Follow autocast, which does not see into the kernel path."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def _check(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    replaced: Tensor | None,
    other: Tensor | None,
    words: int | None,
) -> None:
    if hidden.dim() != 2 or table.dim() != 2 or hidden.shape[1] != table.shape[1]:
        raise InputError(f"hidden {tuple(hidden.shape)} does not fit a table {tuple(table.shape)}")
    if (replaced is None) != (other is None):
        raise InputError("replaced and other come together: which targets are replaced, and their logits without the bias")
    if words is not None and not 0 < words <= len(table):
        raise InputError(f"words must be from 1 to the {len(table)} rows of the table, got {words}")
    per_row = {"targets": targets, "replaced": replaced, "other": other}
    expected = {name: (tensor, len(hidden)) for name, tensor in per_row.items()} | {"bias": (bias, words or len(table))}
    for name, (tensor, length) in expected.items():
        if tensor is not None and tensor.shape != (length,):
            raise InputError(f"{name} must have the shape ({length},), got {tuple(tensor.shape)}")
