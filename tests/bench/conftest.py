"""A bench so small that it takes a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from varsmooth.bench import GROUPS, Plan
from varsmooth.bench.workload import SCHEMES, Workload


@pytest.fixture
def tiny_load() -> Workload:
    return Workload(8, 61, batch=3, window=4, precision="fp32", tokens=500)


@pytest.fixture
def tiny_plan(tiny_load: Workload) -> Plan:
    """Every group that a CPU can run too, and no gate."""
    return Plan(
        torch.device("cpu"),
        groups=tuple(group for group in GROUPS if group != "memory"),
        workloads=(tiny_load, replace(tiny_load, size=16)),
        gate=(),
        schemes=tuple(SCHEMES),
        calls=2,
        repeats=3,
        warm_up=1,
        fleets=(1, 3),
        fleet_words=61,
    )
