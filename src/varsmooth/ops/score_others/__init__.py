"""The products of hidden vectors with those of other words, for targets whose vector is replaced."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.ops.backend import kernels_for
from varsmooth.ops.draw_rows import DrawPlan, GradientSink, Places
from varsmooth.ops.score_others import reference

__all__ = ["score_others"]


def score_others(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    key: DrawKey,
    plan: DrawPlan,
    places: Places,
    wanted: Tensor,
    *,
    sink: GradientSink | None = None,
) -> Tensor:
    """Return [N], at least in float32: ``hidden`` [N, D] times ``draw_rows(weight, ids, ..., replaces_all=True)``, row by row.

    0 where not ``wanted`` [N], for which nothing is drawn. ``sink`` is as for ``draw_rows``.
    """
    if not kernels_for(hidden) or weight.dtype != torch.float32 or hidden.dtype == torch.float64:
        return reference.score_others(hidden, weight, ids, key, plan, places, wanted)
    from varsmooth.ops.score_others import kernel  # late: Triton may be missing where it is not needed

    return kernel.score_others(hidden, weight, ids, key, plan, places, wanted, sink=sink)
