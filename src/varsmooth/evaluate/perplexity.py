"""Perplexity from a mean loss, and temperatures that have one."""

from __future__ import annotations

import math

from varsmooth.errors import InputError

COLDEST = 1e-6
"""Below this logits may overflow."""


def perplexity_of(nll: float) -> float:
    """Return the exponential of a loss in nats per token, infinite where it would overflow."""
    return math.exp(nll) if nll < 700 else math.inf


def check_temperature(name: str, temperature: float) -> None:
    if not COLDEST <= temperature < math.inf:
        raise InputError(f"{name} must be positive and finite, at least {COLDEST:g}; got {temperature:g}")
