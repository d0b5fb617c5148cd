from __future__ import annotations

import math

import pytest
import torch

from varsmooth.ops.tally import tally as dispatched
from varsmooth.ops.tally.kernel import tally as launched

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMS = pytest.mark.parametrize("tally", [dispatched, launched], ids=["dispatched", "kernel"])


def number(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype, device=DEVICE)


@pytest.mark.gpu
@FORMS
def test_on_a_gpu(tally):
    test_terms_are_added_up(tally)
    test_the_first_step_that_is_not_finite_is_remembered(tally, math.nan, "kl")


@FORMS
def test_terms_are_added_up(tally):
    sums, failed_at = torch.ones(4, dtype=torch.float64, device=DEVICE), number(0, torch.int64)
    for step in range(3):
        nll, kl, norm = 100.0 + step, 1e7 * (step + 1), 0.5
        total = tally(sums, failed_at, number(nll), number(kl), number(norm), number(step, torch.int64), 1e-4)
        assert total.item() == pytest.approx(nll + 1e-4 * kl, rel=1e-6)
        assert (total.dtype, total.dim()) == (torch.float32, 0)
    assert sums.tolist() == pytest.approx([1 + 303, 1 + 6e7, 1 + 303 + 6e3, 1 + 1.5], rel=1e-7)
    assert failed_at.item() == 0


@FORMS
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("culprit", ["nll", "kl", "norm"])
def test_the_first_step_that_is_not_finite_is_remembered(tally, value, culprit):
    sums, failed_at = torch.zeros(4, dtype=torch.float64, device=DEVICE), number(0, torch.int64)
    for step in range(10, 16):
        terms = {"nll": number(1.0), "kl": number(2.0), "norm": number(3.0)}
        if step in (12, 14):
            terms[culprit] = number(value)
        tally(sums, failed_at, **terms, step=number(step, torch.int64), l2=0.1)
    assert failed_at.item() == 13


@FORMS
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_an_objective_too_large_for_single_precision_counts_as_not_finite(tally):
    sums, failed_at = torch.zeros(4, dtype=torch.float64, device=DEVICE), number(0, torch.int64)
    tally(sums, failed_at, number(3e38), number(3e38), number(1.0), number(4, torch.int64), 0.9)
    assert failed_at.item() == 5
