"""The whole bench on a GPU, small."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from varsmooth.bench import GROUPS, Plan, learning, run_bench
from varsmooth.bench.learning import Effort, steps_to_goal
from varsmooth.bench.workload import ELEMENT_BATCH, SCHEMES, VANILLA, Workload

pytestmark = pytest.mark.gpu

LOAD = Workload(128, 1_003, batch=16, window=9, tokens=50_000)


@pytest.fixture
def plan() -> Plan:
    return Plan(
        torch.device("cuda"),
        groups=GROUPS,
        workloads=(LOAD,),
        gate=(replace(LOAD, words=203),),
        schemes=tuple(SCHEMES),
        calls=2,
        repeats=2,
        fleets=(1, 2),
        fleet_words=LOAD.words,
    )


def test_everything_is_checked_and_measured(plan: Plan) -> None:
    findings = run_bench(plan, lambda *_: None)
    assert not findings.failures
    names = {check.name for check in findings.checks}
    assert {"kernels are references (fp32)", "kernels are references (bf16)", "graph follows eager for 20 steps"} <= names
    assert "a fleet is its runs alone" in names
    assert {found.group for found in findings.measurements} == set(GROUPS)
    assert all(found.spread.median > 0 for found in findings.measurements)


@pytest.mark.parametrize("scheme", [VANILLA, ELEMENT_BATCH])
def test_a_captured_run_is_looked_at_while_it_learns(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Five times the best possible perplexity is below that of a model that knows frequencies alone."""
    monkeypatch.setattr(learning, "TIMES_THE_BEST", 5.0)
    effort = Effort(steps=2_000, every=50, tokens=50_000, held_out=5_000)
    steps = steps_to_goal(replace(LOAD, words=64), scheme, torch.device("cuda"), effort)
    assert steps is not None
    assert steps > 50
