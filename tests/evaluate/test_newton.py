"""Newton's method over the scales of context and bias, on losses whose minimum is known."""

from __future__ import annotations

import math

import pytest

from varsmooth.evaluate.newton import Derivatives, NewtonStep, apart, minimum, together
from varsmooth.evaluate.perplexity import Scales


def bowl(scales):
    """A quadratic with its minimum at 0.7 and 1.6, and at 1.0375 where both are the same."""
    context, bias = scales[0] - 0.7, scales[1] - 1.6
    loss = 2 * context**2 + context * bias + bias**2
    return Derivatives(loss, 4 * context + bias, context + 2 * bias, 4.0, 1.0, 2.0)


@pytest.mark.parametrize(("rule", "expected"), [(apart, (0.7, 1.6)), (together, (1.0375, 1.0375))])
def test_a_quadratic_takes_one_step_and_a_look(rule, expected):
    looked_at = []

    def seen(scales):
        looked_at.append(scales)
        return bowl(scales)

    assert minimum(seen, Scales(0.9, 0.9), rule, 1e-3) == pytest.approx(expected, rel=1e-12)
    assert len(looked_at) == 2
    assert minimum(bowl, Scales(*expected), rule, 1e-3) == pytest.approx(expected, rel=1e-12)


def test_a_small_step_is_taken_without_a_look():
    looked_at = []

    def seen(scales):
        looked_at.append(scales)
        return bowl(scales)

    assert minimum(seen, Scales(0.705, 1.595), apart, 1e-3) == pytest.approx((0.7, 1.6), rel=1e-12)
    assert looked_at == [(0.705, 1.595)]


def test_a_step_that_goes_too_far_is_halved():
    def far(scales, terms):
        found = apart(scales, terms)
        return NewtonStep((3 * found.change[0], 3 * found.change[1]), 3 * found.size)

    assert minimum(bowl, Scales(0.9, 1.4), far, 1e-6) == pytest.approx((0.7, 1.6), abs=1e-3)


def test_a_temperature_moves_by_a_factor_of_two_at_most_and_the_scales_by_one():
    flat = Derivatives(0.0, -5.0, -5.0, 0.0, 0.0, 0.0)
    assert together(Scales(0.3, 0.3), flat) == NewtonStep((0.3, 0.3), 1.0)
    assert together(Scales(0.3, 0.3), flat._replace(slope=5.0, slope_bias=5.0)) == NewtonStep((-0.15, -0.15), 0.5)
    assert apart(Scales(2.0, 0.5), flat) == NewtonStep((2.0, 0.0), 2.0), "a bias that says nothing is left alone"
    assert apart(Scales(0.25, 0.0), flat) == NewtonStep((1.0, 0.0), 4.0), "what is near is told by how large they are"


def test_a_context_that_says_nothing_leaves_the_step_to_the_bias():
    silent = Derivatives(0.0, 0.0, -1.0, 0.0, 0.0, 4.0)
    assert apart(Scales(1.0, 1.0), silent) == NewtonStep((0.0, 0.25), 0.25)


def test_what_falls_for_ever_is_left_after_a_while():
    def falling(scales):
        return Derivatives(-scales[0], -1.0, 0.0, 0.0, 0.0, 0.0)

    found = minimum(falling, Scales(1.0, 1.0), together, 1e-3)
    assert 1 < found[0] < math.inf


def valley(scales):
    """Convex, with its minimum far off along the bias and the two scales hard to tell apart."""
    context, bias = scales[0] - 0.7, scales[1] - 27.0
    loss = (context**2 + 0.18 * context * bias + 0.01 * bias**2) / 2
    return Derivatives(loss, context + 0.09 * bias, 0.09 * context + 0.01 * bias, 1.0, 0.09, 0.01)


def test_a_long_step_keeps_its_direction_so_that_a_minimum_far_off_is_reached():
    assert minimum(valley, Scales(1.0, 1.0), apart, 1e-3) == pytest.approx((0.7, 27.0), rel=1e-9)
