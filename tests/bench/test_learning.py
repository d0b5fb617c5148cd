from __future__ import annotations

import pytest
import torch

from varsmooth.bench import Plan, learning, plan_for, run_bench
from varsmooth.bench.learning import Effort, steps_to_goal
from varsmooth.bench.workload import ELEMENT_BATCH, VANILLA, Workload
from varsmooth.text.synthetic import ClassSource

CPU = torch.device("cpu")
LOAD = Workload(16, 64, batch=8, window=8, precision="fp32")
EFFORT = Effort(steps=60, every=20, tokens=4_000, held_out=400)


def perplexities(monkeypatch: pytest.MonkeyPatch, found: list[float]) -> None:
    """Let the held-out text have these perplexities, in terms of the best possible one, one after the other."""
    figures = iter(found)
    best = ClassSource(LOAD.words).perplexity
    monkeypatch.setattr(learning.DevelopmentSet, "perplexity", lambda _: next(figures) * best)


@pytest.mark.parametrize(
    ("found", "steps"), [([2.9], 20), ([9.0, 3.0], 40), ([9.0, 8.0, 3.01], None)], ids=["at once", "later", "not in time"]
)
def test_steps_are_counted_to_the_first_look_at_the_goal(monkeypatch, found, steps):
    perplexities(monkeypatch, found)
    assert steps_to_goal(LOAD, VANILLA, CPU, EFFORT) == steps


@pytest.mark.parametrize("scheme", [VANILLA, ELEMENT_BATCH])
def test_a_model_learns_what_is_to_be_learned(monkeypatch, scheme):
    """At five times the best a model must know more than how frequent words are."""
    monkeypatch.setattr(learning, "TIMES_THE_BEST", 5.0)
    load = Workload(48, 64, batch=8, window=10, precision="fp32")
    ids = ClassSource(64).sample(20_000, seed=0)
    shares = ids.bincount(minlength=64) / len(ids)
    of_frequencies = float(torch.special.entr(shares).sum().exp())
    assert of_frequencies > 5.0 * ClassSource(64).perplexity
    steps = steps_to_goal(load, scheme, CPU, Effort(steps=1_000, every=50, tokens=20_000, held_out=2_000))
    assert steps is not None
    assert steps > 50


def test_it_is_measured_only_where_it_is_asked_for_and_only_what_comes_there(tiny_plan: Plan, monkeypatch):
    assert "learning" not in plan_for(torch.device("cuda")).groups
    asked = plan_for(torch.device("cuda"), ("learning",))
    assert asked.groups == ("learning",)
    plan = Plan(**{**vars(tiny_plan), "groups": asked.groups, "schemes": (VANILLA, ELEMENT_BATCH), "workloads": (LOAD,)})
    monkeypatch.setattr("varsmooth.bench.suite.steps_to_goal", lambda _, scheme, *__: 40 if scheme == VANILLA else None)
    (found,) = run_bench(plan, lambda *_: None).measurements
    assert (found.group, found.quantity, found.scheme) == ("learning", "steps to a perplexity", VANILLA)
    assert (found.spread.median, found.unit, found.words) == (40.0, "steps", 64)
