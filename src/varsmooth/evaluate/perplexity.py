"""Perplexity from a mean loss, and the temperatures and scales that have one."""

from __future__ import annotations

import math
from typing import NamedTuple

from varsmooth.errors import InputError

COLDEST = 1e-6
"""Below this logits may overflow."""


class Scales(NamedTuple):
    """Factors of what the context says and of the bias, which is much like the frequency; a temperature is one for both."""

    context: float
    bias: float


def perplexity_of(nll: float) -> float:
    """Return the exponential of a loss in nats per token, infinite where it would overflow."""
    return math.exp(nll) if nll < 700 else math.inf


def check_temperature(name: str, temperature: float) -> None:
    if not COLDEST <= temperature < math.inf:
        raise InputError(f"{name} must be positive and finite, at least {COLDEST:g}; got {temperature:g}")


def check_scales(scales: Scales | None) -> None:
    if scales is not None and not all(abs(scale) <= 1 / COLDEST for scale in scales):
        told = f"got {scales.context:g} for the context and {scales.bias:g} for the bias"
        raise InputError(f"scales must be finite, at most {1 / COLDEST:g} either way; {told}")
