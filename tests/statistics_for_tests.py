"""Chi-square for the tests. Draws are functions of their keys, so a test that passes once passes always; the stated failure
rate is the chance that a sound generator would have failed when the keys were chosen."""

from __future__ import annotations

import torch
from torch import Tensor

FAILURE_RATE = 1e-5


def chi_square_p(observed: Tensor, expected: Tensor) -> float:
    """Return the probability of a chi-square at least as large as that of ``observed`` counts."""
    observed, expected = observed.double().flatten(), expected.double().flatten()
    assert float(expected.min()) >= 5, "too few expected for chi-square"
    statistic = ((observed - expected).square() / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((observed.numel() - 1) / 2).double(), statistic / 2))


def assert_uniform(values: Tensor, bins: int) -> None:
    """``values`` are integers in [0, bins)."""
    observed = torch.bincount(values.flatten().long(), minlength=bins)
    assert observed.numel() == bins
    p = chi_square_p(observed, torch.full((bins,), values.numel() / bins))
    assert p > FAILURE_RATE / 2, f"not uniform: p = {p:.2e}"
    assert p < 1 - FAILURE_RATE / 2, f"too even to be random: p = {p}"


def assert_independent(left: Tensor, right: Tensor, bins: int) -> None:
    """Two uniform integers in [0, bins) from neighbouring coordinates: all pairs equally likely."""
    assert_uniform(left.flatten().long() * bins + right.flatten().long(), bins * bins)
