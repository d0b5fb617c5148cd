"""Perplexity from a mean loss."""

from __future__ import annotations

import math


def perplexity_of(nll: float) -> float:
    """Return the exponential of a loss in nats per token, infinite where it would overflow."""
    return math.exp(nll) if nll < 700 else math.inf
