"""The Kullback-Leibler term as a weighted squared norm (docs/maths.md, section 3)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from varsmooth.errors import check_choice
from varsmooth.proposal import Proposal

KLForm = Literal["exact", "printed", "plain"]


def kl_weights(proposal: Proposal | None, vocab_size: int, form: KLForm = "exact") -> Tensor:
    """Return c_v of eqs. 6 to 8, in double precision: by how much the squared norm of row v counts."""
    check_choice("form", form, get_args(KLForm))
    if proposal is None or form == "plain":
        device = None if proposal is None else proposal.rate.device
        return torch.ones(vocab_size, dtype=torch.float64, device=device)
    rate, probs = proposal.rate.double(), proposal.probs.double()
    if form == "printed":
        return 1 + (vocab_size - 2 + probs) * rate
    return 1 - rate + probs * rate.sum()
