"""The whole bench on a GPU, small."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from varsmooth.bench import GROUPS, Plan, run_bench
from varsmooth.bench.workload import SCHEMES, Workload

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
