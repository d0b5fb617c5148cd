"""Shares of a variance, by hand and on functions whose shares are known."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from varsmooth.sweep.importance import importance, share
from varsmooth.sweep.space import Choice, Range


def test_the_share_by_hand():
    # Between: 4 * 1 = 4; within: 4 * 0.25 = 1; by chance (2 - 1) * 1 / (4 - 2) = 0.5.
    assert share(["a", "a", "b", "b"], [0.5, 1.5, 2.5, 3.5]) == pytest.approx((4 - 0.5) / 5)
    assert share(["a", "a", "b", "b"], [1.0, 1.0, 3.0, 3.0]) == 1
    assert share(["a", "a", "b", "b"], [1.0, 3.0, 1.0, 3.0]) == 0
    assert share(["a", "a", "b", "b"], [2.0] * 4) == 0
    assert share(["a", "b", "c", "d"], [1.0, 2.0, 3.0, 4.0]) == 0, "as many groups as values tell all apart"


def test_on_a_grid_the_shares_are_those_of_the_variance():
    space = {"dropout.tables": Choice((0.0, 0.1, 0.2, 0.3, 0.4, 0.5)), "train.lr": Choice((0.001, 0.003, 0.01, 0.03))}
    rows = itertools.product(*(dimension.values for dimension in space.values()))
    trials = [({"dropout.tables": drop, "train.lr": lr}, math.exp(3 * math.log10(lr) + drop)) for drop, lr in rows]
    found = importance(space, trials)
    assert list(found) == ["train.lr", "dropout.tables"]
    assert found["train.lr"] > 0.95
    assert sum(found.values()) == pytest.approx(1, abs=0.02)


def test_what_does_not_matter_has_next_to_no_share_on_average():
    source = random.Random(7)
    shares = [share([source.randrange(4) for _ in range(24)], [source.gauss(0, 1) for _ in range(24)]) for _ in range(400)]
    # The plain ratio has a mean of 3 / 23 = 0.13; here half of the shares would be below 0, and are 0.
    assert sum(shares) / len(shares) < 0.07


def test_values_of_a_range_count_by_its_quarters():
    space = {"train.lr": Range(0.001, 0.1, log=True), "smoothing.gamma": Range(0.0, 1.0, step=0.05)}
    source = random.Random(3)
    trials = []
    for _ in range(60):
        lr, gamma = 10 ** source.uniform(-3, -1), round(0.05 * source.randrange(21), 12)
        trials.append(({"train.lr": lr, "smoothing.gamma": gamma}, 100 * lr**0.5 + 1))
    found = importance(space, trials)
    assert found["train.lr"] > 0.85
    assert found["smoothing.gamma"] < 0.15
