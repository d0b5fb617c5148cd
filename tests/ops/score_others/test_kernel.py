"""The kernels against the reference; without a GPU in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth import DrawKey, Proposal
from varsmooth.ops.draw_rows import DrawPlan, GradientSink, Places, sink
from varsmooth.ops.score_others import reference

pytest.importorskip("triton")

from varsmooth.ops.score_others import kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEY = DrawKey(seed=5, step=2**32 - 1, site=1)
PLACES = Places(3, sequence=2, by_sequence=True)


@dataclass(frozen=True)
class Case:
    hidden: Tensor
    weight: Tensor
    ids: Tensor
    wanted: Tensor
    plan: DrawPlan

    def score(self, module: Any, **options: Any) -> Tensor:
        found: Tensor = module.score_others(self.hidden, self.weight, self.ids, KEY, self.plan, PLACES, self.wanted, **options)
        return found


def some_case(count: int = 6, words: int = 7, width: int = 5, dtype: torch.dtype = torch.float32, **options: Any) -> Case:
    generator = torch.Generator().manual_seed(width)
    probs = torch.rand(words, generator=generator)
    proposal = Proposal(torch.full((words,), 0.5), probs / probs.sum()).to(DEVICE)
    defaults = {"by_element": False, "dropout": 0.4, "dropout_by_element": True, "variance": 0.0}
    return Case(
        torch.randn(count, width, generator=generator).to(DEVICE, dtype).requires_grad_(),
        torch.randn(words, width, generator=generator).to(DEVICE).requires_grad_(),
        (torch.arange(count) % words).to(DEVICE),
        (torch.arange(count) % 3 != 1).to(DEVICE),
        DrawPlan.of(proposal, **(defaults | options)),
    )


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreted program takes long, however much it does."""
    monkeypatch.setattr(kernel, "ROWS", 8)
    monkeypatch.setattr(kernel, "COLUMNS", 16)


def compare(case: Case, rtol: float = 1e-5) -> None:
    found, expected = case.score(kernel), case.score(reference)
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-5)
    assert (found[~case.wanted] == 0).all()
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found)
    inputs = {"hidden": case.hidden, "weight": case.weight}
    ours, theirs = (torch.autograd.grad(scores, inputs.values(), grad) for scores in (found, expected))
    for name, mine, yours in zip(inputs, ours, theirs, strict=True):
        assert mine.dtype == yours.dtype
        torch.testing.assert_close(mine, yours, rtol=rtol, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("dropout_by_element", [True, False])
@pytest.mark.parametrize("variance", [0.0, 0.3])
def test_scores_and_gradients_are_those_of_the_reference(dropout, dropout_by_element, variance):
    compare(some_case(dropout=dropout, dropout_by_element=dropout_by_element, variance=variance))


@pytest.mark.parametrize(("count", "words", "width"), [(1, 1, 1), (11, 2, 33), (3, 9, 16)])
def test_odd_shapes(count, words, width):
    compare(some_case(count, words, width))


def test_half_precision_hidden_states():
    compare(some_case(dtype=torch.bfloat16), rtol=1e-2)


def test_a_table_in_half_precision_has_scores_in_single():
    case = some_case(dtype=torch.bfloat16)
    halved = replace(case, weight=case.weight.detach().bfloat16())
    found = halved.score(reference)
    assert found.dtype == torch.float32
    expected = replace(case, weight=halved.weight.float()).score(reference)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_one_row_at_a_time(monkeypatch):
    monkeypatch.setattr(kernel, "ROWS", 1)
    compare(some_case(4))


def test_no_rows():
    assert some_case(0).score(kernel).shape == (0,)


def test_the_table_may_be_fixed():
    case = some_case()
    case.weight.requires_grad_(False)
    ours, theirs = (torch.autograd.grad(case.score(module).square().sum(), case.hidden)[0] for module in (kernel, reference))
    torch.testing.assert_close(ours, theirs)


def test_a_sink_takes_the_gradient_of_the_table(monkeypatch):
    monkeypatch.setattr(sink, "kernels_for", lambda _: True)
    case = some_case()
    shared = GradientSink.of(case.weight)
    gathered = case.score(kernel, sink=shared).square().sum() + case.score(kernel, sink=shared).sum()
    alone = case.score(reference).square().sum() + case.score(reference).sum()
    for ours, theirs in zip(*(torch.autograd.grad(x, (case.hidden, case.weight)) for x in (gathered, alone)), strict=True):
        torch.testing.assert_close(ours, theirs)
