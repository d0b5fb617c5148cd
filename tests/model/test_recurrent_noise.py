"""The draws of the recurrent matrices: rates, scales and independence.

Bounds are 4.5 standard deviations, which a sound generator leaves once in 150,000 keys; the keys are fixed.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.model.recurrent_noise import RecurrentNoise

T, B = 5, 3
KEY = DrawKey(seed=11, step=4)


def assert_independent(first: Tensor, second: Tensor) -> None:
    """Two masks at rate one half agree on half of their elements."""
    agreement = (first == second).double().mean()
    assert abs(agreement - 0.5) < 4.5 * 0.5 * first.numel() ** -0.5


def test_update_masks_of_two_layers_differ():
    noise = RecurrentNoise(0.5, "update", "batch", 0.0)
    first, second = noise.update_factors(KEY, [torch.empty(4, 50)] * 4, torch.arange(B), steps=T)
    assert first.shape == (T, B, 50)
    assert_independent(first, second)


@pytest.mark.parametrize("dropout", [0.2, 0.7])
@pytest.mark.parametrize(("kind", "scope"), [("rows", "batch"), ("rows", "sequence"), ("dropconnect", "batch")])
def test_keep_rate_and_scale(dropout, kind, scope):
    noise = RecurrentNoise(dropout, kind, scope, 0.0)
    matrices, sequences = [torch.empty(40, 101)] * 4, torch.arange(30)
    drawn = [
        factor
        for step in range(50)
        for factor in noise.matrix_factors(DrawKey(1, step), matrices, sequences)
        if factor is not None
    ]
    assert len(drawn) == 50 * (3 if kind == "rows" else 2)
    factors = torch.stack(drawn)
    assert set(factors.unique().tolist()) == {0.0, torch.tensor(1 / (1 - dropout)).item()}
    kept = (factors != 0).double()
    spread = (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(kept.mean() - (1 - dropout)) < 4.5 * spread


def test_keep_counts_of_units_follow_the_binomial():
    """Chi-square over 200 units, each kept or not in 400 steps: 200 degrees of freedom."""
    noise = RecurrentNoise(0.3, "rows", "batch", 0.0)
    matrices = [torch.empty(4, 200)] * 2
    kept = torch.stack([noise.matrix_factors(DrawKey(2, s), matrices, torch.arange(1))[1] != 0 for s in range(400)])
    statistic = ((kept.double().sum(0) - 400 * 0.7) ** 2 / (400 * 0.3 * 0.7)).sum()
    assert abs(statistic - 200) < 4.5 * (2 * 200) ** 0.5


def test_masks_of_matrices_sequences_and_steps_are_independent():
    noise = RecurrentNoise(0.5, "rows", "sequence", 0.0)
    matrices, sequences = [torch.empty(4, 5000)] * 4, torch.arange(2)
    masks = [f[b] for step in (0, 1) for f in noise.matrix_factors(DrawKey(3, step), matrices, sequences)[1:] for b in (0, 1)]
    assert len(masks) == 12
    for first, second in itertools.combinations(masks, 2):
        assert_independent(first, second)


def test_variance_is_that_of_every_matrix():
    """400,000 values: mean within 4.5 standard errors, variance within 4.5 * sqrt(2 / n)."""
    noise = RecurrentNoise(0.0, "rows", "batch", 0.09)
    added = torch.stack(noise.gaussians(KEY, [torch.empty(1000, 100)] * 4)).double()
    assert abs(added.mean()) < 4.5 * 0.3 / added.numel() ** 0.5
    assert abs(added.square().mean() / 0.09 - 1) < 4.5 * (2 / added.numel()) ** 0.5
    correlations = torch.corrcoef(added.flatten(1))
    assert (correlations - torch.eye(4)).abs().max() < 4.5 / added[0].numel() ** 0.5
    again, other = (noise.gaussians(DrawKey(KEY.seed, step), [torch.empty(1000, 100)] * 4) for step in (KEY.step, 9))
    assert torch.equal(torch.stack(again).double(), added)
    assert not torch.equal(other[0], again[0])
