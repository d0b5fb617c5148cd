"""Speed, measured: the training step, its schemes, its parts and fleets of runs, behind a check that the results are right."""

from varsmooth.bench.findings import Findings, Measurement, Quartiles
from varsmooth.bench.plan import GROUPS, Plan, plan_for
from varsmooth.bench.suite import run_bench

__all__ = ["GROUPS", "Findings", "Measurement", "Plan", "Quartiles", "plan_for", "run_bench"]
