"""The kernels against the reference, draw for draw; without a GPU in Triton's interpreter."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth import DrawKey, Proposal
from varsmooth.ops.draw_rows import DrawPlan, GradientSink, Places, reference, sink

pytest.importorskip("triton")

from varsmooth.ops.draw_rows import kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FULL, HALF = torch.float32, torch.bfloat16
KEY = DrawKey(seed=2**32 - 1, step=2**31 + 5, site=3)
SCOPES = {
    "batch": Places(),
    "sequence": Places(3, sequence=2, by_sequence=True),
    "position": Places(3, sequence=2, by_sequence=True, by_position=True),
}


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreted program takes long, however much it does."""
    monkeypatch.setattr(kernel, "ROWS", 8)


@dataclass(frozen=True)
class Case:
    """A plan and what it is drawn for."""

    granularity: str = "word"
    dropout_granularity: str = "element"
    rate: float = 0.5
    dropout: float = 0.5
    variance: float = 0.0
    dtype: torch.dtype = FULL
    scope: str = "sequence"

    @property
    def plan(self) -> DrawPlan:
        return plan(
            self.rate,
            by_element=self.granularity == "element",
            dropout=self.dropout,
            dropout_by_element=self.dropout_granularity == "element",
            variance=self.variance,
        )


def plan(rate: float = 0.5, words: int = 7, **options: Any) -> DrawPlan:
    probs = torch.rand(words, generator=torch.Generator().manual_seed(words))
    probs[-1] *= words == 1  # the last word is never proposed, unless there is no other
    proposal = Proposal(torch.full((words,), rate), probs / probs.sum()).to(DEVICE)
    defaults = {"by_element": False, "dropout": 0.0, "dropout_by_element": True, "variance": 0.0}
    return DrawPlan.of(proposal, **(defaults | options))


def table(words: int = 7, width: int = 5) -> Tensor:
    return torch.randn(words, width, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()


def some_ids(count: int = 6, words: int = 7) -> Tensor:
    """Word 0 comes first and last, so that gradients meet."""
    return (torch.arange(count) * 2 % max(1, count - 1) % words).to(DEVICE)


def compare(weight: Tensor, ids: Tensor | None, plan: DrawPlan, places: Places, **options: Any) -> Tensor:
    """Hold a draw and its gradient against the reference; return the draw."""
    found, expected = (module.draw_rows(weight, ids, KEY, plan, places, **options) for module in (kernel, reference))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if plan.deviation or (found.dtype == HALF and DEVICE == "cpu"):  # the interpreter rounds to bfloat16 in a way of its own
        torch.testing.assert_close(found, expected, rtol=1e-5 if found.dtype == FULL else 1e-2, atol=1e-5)
        assert torch.equal(found == 0, expected == 0)
    else:
        assert torch.equal(found, expected)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found)
    ours, theirs = (torch.autograd.grad(drawn, weight, grad)[0] for drawn in (found, expected))
    assert ours.dtype == FULL
    if ids is None and not (plan.smooths_words or plan.smooths_elements):
        assert torch.equal(ours, theirs)
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    return found


GRANULARITIES = ["word", "element"]
SETTINGS = [
    Case(*settings[:2], rate=0.5, dropout=settings[2], variance=settings[3])
    for settings in itertools.product(GRANULARITIES, GRANULARITIES, [0.0, 0.5], [0.0, 0.3])
]
EDGES = [
    *(Case(g, d, rate, dropout=0.5) for g, d, rate in itertools.product(GRANULARITIES, GRANULARITIES, [0.0, 1.0])),
    *(Case(g, dtype=HALF, scope=scope) for g, scope in itertools.product(GRANULARITIES, SCOPES)),
]
PRODUCT = itertools.product(GRANULARITIES, GRANULARITIES, [0.0, 0.5, 1.0], [0.0, 0.5], [0.0, 0.3], [FULL, HALF], SCOPES)
EVERYTHING = [pytest.param(Case(*settings), marks=pytest.mark.slow) for settings in PRODUCT]


@pytest.mark.parametrize("case", [*SETTINGS, *EDGES, *EVERYTHING], ids=lambda case: "-".join(map(str, vars(case).values())))
def test_draws_and_gradients_are_those_of_the_reference(case):
    weight, plan = table(), case.plan
    compare(weight, some_ids(), plan, SCOPES[case.scope], dtype=case.dtype)
    compare(weight, None, plan, Places(sequence=3, position=1), dtype=case.dtype)


def test_cases_are_not_all_the_table_in_disguise():
    for case in SETTINGS:
        drawn = kernel.draw_rows(table(), None, KEY, case.plan, Places())
        assert not torch.equal(drawn, table())
        assert bool((drawn == 0).any()) == (case.dropout > 0 and case.variance == 0)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(("words", "width", "count"), [(1, 1, 1), (1, 3, 4), (2, 33, 1), (9, 1, 2), (9, 33, 13)])
def test_odd_shapes(monkeypatch, granularity, words, width, count):
    """Rows and columns that do not fill their blocks, and some of both."""
    monkeypatch.setattr(kernel, "COLUMNS", 16)
    odd = plan(0.5, words, by_element=granularity == "element", dropout=0.3)
    compare(table(words, width), some_ids(count, words), odd, SCOPES["position"])
    compare(table(words, width), None, odd, Places())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_one_row_at_a_time(monkeypatch, granularity):
    monkeypatch.setattr(kernel, "ROWS", 1)
    compare(table(4, 3), some_ids(3, 4), plan(0.5, 4, by_element=granularity == "element", dropout=0.3), SCOPES["position"])
    compare(table(4, 3), None, plan(0.5, 4, by_element=granularity == "element", dropout=0.3), Places())


def test_no_rows():
    weight, nothing = table(), torch.zeros(0, dtype=torch.int64, device=DEVICE)
    drawn = compare(weight, nothing, plan(), SCOPES["sequence"])
    assert drawn.shape == (0, 5)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_first_rows_alone(granularity):
    first = plan(0.5, by_element=granularity == "element", dropout=0.3)
    drawn = compare(table(), None, first, Places(), rows=5)
    assert torch.equal(drawn, kernel.draw_rows(table(), None, KEY, first, Places())[:5])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_past_the_last_are_zeros_and_give_nothing_back(granularity):
    drawn = compare(table(), None, plan(0.5, by_element=granularity == "element", variance=0.2), Places(), rows=9)
    assert drawn.shape == (9, 5)
    assert (drawn[7:] == 0).all()


@pytest.mark.parametrize("dropout_granularity", GRANULARITIES)
@pytest.mark.parametrize("variance", [0.0, 0.3])
def test_words_that_are_all_replaced(dropout_granularity, variance):
    """The word comes from its place, dropout and variance from the table that the batch shares."""
    weight = table()
    options = {"dropout": 0.5, "dropout_by_element": dropout_granularity == "element", "variance": variance}
    compare(weight, some_ids(), plan(**options), SCOPES["position"], replaces_all=True)
    by_hand = plan(0.0, **options)
    dropped = reference.draw_rows(torch.ones_like(weight), some_ids(), KEY, replace(by_hand, deviation=0.0), Places())
    drawn = kernel.draw_rows(
        weight, some_ids(), KEY, replace(plan(**options), deviation=0.0), SCOPES["position"], replaces_all=True
    )
    assert torch.equal(drawn == 0, dropped == 0)


def test_no_smoothing_and_no_proposal():
    silent = DrawPlan.of(None, by_element=False, dropout=0.5, dropout_by_element=True, variance=0.1)
    compare(table(), some_ids(), silent, SCOPES["position"])
    compare(table(), None, silent, Places())


@pytest.mark.parametrize("scope", SCOPES)
def test_replaced_says_where_the_coin_fell(scope):
    ids = torch.arange(600, device=DEVICE) % 7
    found, expected = (module.replaced_words(ids, KEY, plan(), SCOPES[scope]) for module in (kernel, reference))
    assert torch.equal(found, expected)
    assert found.any()
    assert not found.all()
    assert kernel.replaced_words(ids[:0], KEY, plan(), SCOPES[scope]).shape == (0,)


def test_the_step_may_live_on_the_device_and_must_not_advance_before_backward():
    weight, step = table(), torch.tensor(KEY.step, device=DEVICE)
    drawn = kernel.draw_rows(weight, some_ids(), replace(KEY, step=step), plan(), SCOPES["sequence"])
    assert torch.equal(drawn, kernel.draw_rows(weight, some_ids(), KEY, plan(), SCOPES["sequence"]))
    step += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        drawn.sum().backward()


def draws_into(weight: Tensor, shared: GradientSink | None, order: tuple[str, ...]) -> list[Tensor]:
    """The three ways in which a network draws a tied table; the last is the first whose gradient comes."""
    smooth = plan(0.5, by_element=False, dropout=0.3)
    ways = {
        "table": lambda: kernel.draw_rows(weight, None, KEY.at(1), smooth, Places(), rows=6, sink=shared),
        "lookup": lambda: kernel.draw_rows(weight, some_ids(), KEY, smooth, SCOPES["sequence"], sink=shared),
        "other": lambda: kernel.draw_rows(weight, some_ids(), KEY, smooth, Places(), replaces_all=True, sink=shared),
    }
    return [ways[name]() for name in order]


@pytest.mark.parametrize("order", [("lookup", "other", "table"), ("table", "lookup", "other"), ("other", "table", "lookup")])
def test_a_sink_gathers_the_gradients_of_all_draws(monkeypatch, order):
    monkeypatch.setattr(sink, "kernels_for", lambda _: True)
    weight = table()
    shared = GradientSink.of(weight)
    assert shared is not None
    total = sum(drawn.square().sum() for drawn in draws_into(weight, shared, order)) + weight.sum()
    (expected,) = torch.autograd.grad(
        sum(drawn.square().sum() for drawn in draws_into(weight, None, order)) + weight.sum(), weight
    )
    for _ in range(2):  # a second pass starts anew
        (found,) = torch.autograd.grad(total, weight, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert shared.gradient.buffer is None


def test_a_sink_allows_draws_that_have_no_part_in_the_loss(monkeypatch):
    monkeypatch.setattr(sink, "kernels_for", lambda _: True)
    weight = table()
    drawn = draws_into(weight, GradientSink.of(weight), ("table", "lookup"))
    expected = draws_into(weight, None, ("table",))[0]
    (found,) = torch.autograd.grad(drawn[0].square().sum(), weight)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), weight)[0])


def test_there_is_no_sink_where_nothing_would_write_into_it(monkeypatch):
    assert DEVICE == "cuda" or GradientSink.of(table()) is None
    monkeypatch.setattr(sink, "kernels_for", lambda _: True)
    assert GradientSink.of(table().detach()) is None
    with torch.no_grad():
        assert GradientSink.of(table()) is None


@pytest.mark.parametrize("by_element", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 7, 8, 16])
def test_fewer_rows_are_cut_off_and_more_are_zeros(rows, by_element):
    whole = plan(by_element=by_element, dropout=0.3)
    drawn = compare(table(), None, whole, Places(), rows=rows)
    assert drawn.shape == (rows, 5)
    assert torch.equal(drawn[:7], kernel.draw_rows(table(), None, KEY, whole, Places())[:rows])
    assert not drawn[7:].any()
