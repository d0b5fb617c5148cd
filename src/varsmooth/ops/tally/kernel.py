"""The bookkeeping in one launch instead of a dozen."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _tally_kernel(sums, failed_at, nlls, kls, norms, steps, totals, l2: tl.constexpr):
    nll, kl, norm = tl.load(nlls), tl.load(kls), tl.load(norms)
    total = nll + l2 * kl
    tl.store(totals, total)
    place = tl.arange(0, 4)
    found = tl.where(place == 0, nll, tl.where(place == 1, kl, tl.where(place == 2, total, norm)))
    tl.store(sums + place, tl.load(sums + place) + found.to(tl.float64))
    finite = tl.sum((tl.abs(found) < float("inf")).to(tl.int32)) == 4
    failed = tl.load(failed_at)
    tl.store(failed_at, tl.where((failed == 0) & (finite == 0), tl.load(steps) + 1, failed))


def tally(sums: Tensor, failed_at: Tensor, nll: Tensor, kl: Tensor, norm: Tensor, step: Tensor, l2: float) -> Tensor:
    """As the reference."""
    total = torch.empty_like(nll)
    _tally_kernel[(1,)](sums, failed_at, nll, kl, norm, step, total, l2, num_warps=1)
    return total
