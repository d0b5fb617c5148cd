"""The definition in plain torch, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.ops.draw_rows import DrawPlan, Places
from varsmooth.ops.draw_rows.reference import draw_rows


def score_others(
    hidden: Tensor, weight: Tensor, ids: Tensor, key: DrawKey, plan: DrawPlan, places: Places, wanted: Tensor
) -> Tensor:
    """As the operation of this name."""
    vectors = draw_rows(weight, ids, key, plan, places, replaces_all=True)
    at_least = torch.promote_types(hidden.dtype, torch.float32)
    return (hidden.to(at_least) * vectors).sum(-1).where(wanted, 0.0)
