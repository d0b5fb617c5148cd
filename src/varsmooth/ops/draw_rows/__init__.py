"""Rows of an embedding table, drawn from the posterior without ever building the table."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.ops.backend import kernels_for
from varsmooth.ops.draw_rows import reference
from varsmooth.ops.draw_rows.plan import DrawPlan
from varsmooth.ops.draw_rows.sink import GradientSink
from varsmooth.ops.places import Places

__all__ = ["DrawPlan", "GradientSink", "Places", "draw_rows", "replaced_words"]


def draw_rows(
    weight: Tensor,
    ids: Tensor | None,
    key: DrawKey,
    plan: DrawPlan,
    places: Places,
    *,
    replaces_all: bool = False,
    rows: int | None = None,
    dtype: torch.dtype | None = None,
    sink: GradientSink | None = None,
) -> Tensor:
    """Return one draw of rows ``ids`` [N] of ``weight`` [V, D], or of the first ``rows`` (all) when ``ids`` is None; [N, D].

    More ``rows`` than there are come out as zeros. ``replaces_all``: every word is replaced, by one that the proposal draws at
    ``places``; dropout and variance are then those of the table that the batch shares. ``dtype``: that of the result (None: the
    weight's); the gradient has the weight's. ``sink``: where the gradient goes, if several draws of one table are to share one.
    """
    if not kernels_for(weight) or weight.dtype != torch.float32:
        return reference.draw_rows(weight, ids, key, plan, places, replaces_all=replaces_all, rows=rows, dtype=dtype)
    from varsmooth.ops.draw_rows import kernel  # late: Triton may be missing where it is not needed

    return kernel.draw_rows(weight, ids, key, plan, places, replaces_all=replaces_all, rows=rows, dtype=dtype, sink=sink)


def replaced_words(ids: Tensor, key: DrawKey, plan: DrawPlan, places: Places) -> Tensor:
    """Return where the word-level coin of ``ids`` [N] fell: the word is replaced, even if by itself."""
    if not plan.smooths_words:
        return torch.zeros_like(ids, dtype=torch.bool)
    if not kernels_for(ids):
        return reference.replaced_words(ids, key, plan, places)
    from varsmooth.ops.draw_rows import kernel

    return kernel.replaced_words(ids, key, plan, places)
