"""Bookkeeping of a step: sums of its terms, and the first step that was not finite."""

from __future__ import annotations

from torch import Tensor

from varsmooth.ops.backend import kernels_for
from varsmooth.ops.tally.reference import tally as tally_reference

__all__ = ["tally"]


def tally(sums: Tensor, failed_at: Tensor, nll: Tensor, kl: Tensor, norm: Tensor, step: Tensor, l2: float) -> Tensor:
    """Return the objective ``nll + l2 * kl``; add nll, kl, the objective and ``norm`` to ``sums`` [4] (float64).

    ``failed_at`` becomes ``step`` + 1 at the first step where any of them is not finite. All 0-d, on one device.
    """
    if kernels_for(sums):
        from varsmooth.ops.tally.kernel import tally as launch

        return launch(sums, failed_at, nll, kl, norm, step, l2)
    return tally_reference(sums, failed_at, nll, kl, norm, step, l2)
