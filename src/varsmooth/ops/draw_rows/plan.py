"""The posterior of eq. 2 in the form that draws need: integer thresholds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from varsmooth.draws import coin_threshold
from varsmooth.proposal import Proposal


@dataclass(frozen=True, eq=False)
class DrawPlan:
    """At each level, word and element, one uniform integer decides everything that is chosen at that level.

    It drops below ``drop_below``, keeps in the middle and replaces from ``replace_from`` on, so the bounds of a level that both
    drops and smooths are joint and those of separate levels are not.
    """

    smooths_words: bool
    smooths_elements: bool
    drops_words: bool
    drops_elements: bool
    drop_below: int
    replace_from: Tensor | None
    proposal: Proposal | None
    scale: float
    deviation: float

    @classmethod
    def of(
        cls, proposal: Proposal | None, *, by_element: bool, dropout: float, dropout_by_element: bool, variance: float
    ) -> DrawPlan:
        smooths = proposal is not None and not proposal.silent
        joint = dropout if by_element == dropout_by_element else 0.0
        return cls(
            smooths_words=smooths and not by_element,
            smooths_elements=smooths and by_element,
            drops_words=dropout > 0 and not dropout_by_element,
            drops_elements=dropout > 0 and dropout_by_element,
            drop_below=int(coin_threshold(torch.tensor(dropout, dtype=torch.float64))),
            replace_from=_replace_from(proposal.rate, joint) if proposal is not None and smooths else None,
            proposal=proposal if smooths else None,
            scale=1 / (1 - dropout),
            deviation=variance**0.5,
        )

    @cached_property
    def unsmoothed(self) -> DrawPlan:
        """The same dropout and variance, and no smoothing."""
        return replace(self, smooths_words=False, smooths_elements=False, replace_from=None, proposal=None)

    def draw(self, bits: Tensor) -> Tensor:
        """Return a word (int64) of the proposal for each 32-bit word."""
        assert self.proposal is not None
        return self.proposal.draw(bits)


def _replace_from(rate: Tensor, dropout: float) -> Tensor:
    """Return where replacing starts: exactly at the end of dropping for rate 1, past every coin for rate 0."""
    return coin_threshold(dropout + (1 - dropout) * (1 - rate.double()))
