"""The scales of context and bias with the lowest loss, by Newton's method: the loss is convex in both together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from varsmooth.evaluate.perplexity import Scales

STEPS = 60
"""At most, those that are halved included."""


class Derivatives(NamedTuple):
    """The loss at some scales and its derivatives by them, summed over the tokens."""

    loss: float
    slope: float
    slope_bias: float
    second: float
    mixed: float
    second_bias: float


class NewtonStep(NamedTuple):
    change: tuple[float, float]
    """of the context's scale and of the bias's"""
    size: float
    """its length, as a share of the scales: a short step says that the minimum is near"""

    def halved(self) -> NewtonStep:
        return NewtonStep((self.change[0] / 2, self.change[1] / 2), self.size / 2)


Rule: TypeAlias = Callable[[Scales, Derivatives], NewtonStep]


def minimum(terms_at: Callable[[Scales], Derivatives], start: Scales, rule: Rule, tolerance: float) -> Scales:
    """Return the scales with the lowest loss, within ``tolerance``; a step that goes too far is halved."""
    found, best, step = start, math.inf, NewtonStep((0.0, 0.0), 0.0)
    for _ in range(STEPS):
        tried = _changed(found, step)
        terms = terms_at(tried)
        if terms.loss <= best:
            found, best, step = tried, terms.loss, rule(tried, terms)
            # What is missing after a step is about its square, so the last one need not be looked at.
            if step.size < math.sqrt(tolerance) / 3:
                return _changed(found, step)
        else:
            step = step.halved()
            if step.size < tolerance:
                break
    return found


def together(scales: Scales, terms: Derivatives) -> NewtonStep:
    """The step of one scale for both, which is the inverse of a temperature: it is halved or doubled at most."""
    # A model that is sure of everything has no curvature left; it gets a long step in the right direction.
    curvature = max(terms.second + 2 * terms.mixed + terms.second_bias, 1e-30)
    step = min(max(-(terms.slope + terms.slope_bias) / curvature, -scales.context / 2), scales.context)
    return NewtonStep((step, step), abs(step) / scales.context)


def apart(scales: Scales, terms: Derivatives) -> NewtonStep:
    """The step of two scales, neither of which more than doubles, or grows or falls by more than 1 where it is small.

    A step that is too long keeps its direction, which is downhill; were each scale cut off by itself, it might not be. Where
    one of the two says the same of every word, its scale is left alone.
    """
    determinant = terms.second * terms.second_bias - terms.mixed * terms.mixed
    if determinant <= 1e-9 * terms.second * terms.second_bias:
        change = (-terms.slope / max(terms.second, 1e-30), 0.0)
        if terms.second < terms.second_bias:
            change = (0.0, -terms.slope_bias / terms.second_bias)
    else:
        change = (
            (terms.mixed * terms.slope_bias - terms.second_bias * terms.slope) / determinant,
            (terms.mixed * terms.slope - terms.second * terms.slope_bias) / determinant,
        )
    excess = max(1.0, *(abs(each) / max(1.0, abs(scale)) for each, scale in zip(change, scales, strict=True)))
    context, bias = change[0] / excess, change[1] / excess
    # Where both are small, what is near is so, too; one alone may well be nothing.
    unit = min(1.0, max(abs(scales.context), abs(scales.bias), 1e-12))
    return NewtonStep((context, bias), max(abs(context), abs(bias)) / unit)


def bias_alone(scales: Scales, terms: Derivatives) -> NewtonStep:
    """The step of the bias's scale, the context's left as it is."""
    return apart(scales, terms._replace(slope=0.0, second=0.0, mixed=0.0))


def _changed(scales: Scales, step: NewtonStep) -> Scales:
    return Scales(scales.context + step.change[0], scales.bias + step.change[1])
