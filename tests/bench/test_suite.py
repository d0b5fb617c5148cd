from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth.bench import Plan, run_bench, suite
from varsmooth.bench.findings import Check
from varsmooth.bench.fleet import Fleet
from varsmooth.bench.parts import parts_of
from varsmooth.bench.timing import Call
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, SCHEMES, VANILLA, WORD, Workload
from varsmooth.errors import InputError
from varsmooth.posterior import EmbeddingPosterior
from varsmooth.train.trainer import Trainer

CPU = torch.device("cpu")


def silent(name: str, number: int, total: int) -> None:
    """Observe nothing."""


class SlowingStopwatch:
    """Calls, and pretends that every call takes longer than the one before."""

    def __init__(self) -> None:
        self.milliseconds = 1.0

    def __call__(self, call: Call, calls: int) -> float:
        for _ in range(calls):
            call()
        self.milliseconds *= 2
        return self.milliseconds


def test_every_group_is_measured_at_every_size(tiny_plan: Plan) -> None:
    findings = run_bench(tiny_plan, silent)
    assert not findings.failures
    measured = Counter((found.group, found.quantity, found.size) for found in findings.measurements)
    for size in (8, 16):
        assert measured["eager", "eager step", size] == 1
        assert measured["schemes", "step", size] == len(SCHEMES)
        assert measured["schemes", "over vanilla", size] == len(SCHEMES) - 1
        assert measured["fleet", "fleet of 1", size] == measured["fleet", "fleet of 3", size] == 1
        assert measured["parts", "recurrent stack", size] == measured["parts", "output loss", size] == 1
        assert measured["parts", "optimiser", size] == 1
        assert measured["parts", "table draw", size] == 2
        assert measured["parts", "look-up", size] == 4
    assert not findings.checks
    assert all(found.spread.repeats == 3 and 0 < found.spread.q1 <= found.spread.q3 for found in findings.measurements)
    assert findings.seconds > 0
    assert set(findings.environment["versions"]) >= {"torch", "triton", "python", "varsmooth"}


def test_ratios_come_from_turns(tiny_plan: Plan) -> None:
    """With a clock that doubles at every turn, the n-th scheme takes 2^n times as long as vanilla in each repeat."""
    plan = replace(tiny_plan, groups=("schemes",), workloads=tiny_plan.workloads[:1])
    findings = run_bench(plan, silent, SlowingStopwatch())
    ratios = [found for found in findings.measurements if found.quantity == "over vanilla"]
    assert [found.scheme for found in ratios] == list(SCHEMES)[1:]
    assert [found.spread.median for found in ratios] == [2.0**n for n in range(1, len(SCHEMES))]
    assert all(found.spread.q1 == found.spread.q3 and found.unit == "x" for found in ratios)


def test_a_fleets_time_is_that_of_one_step_of_one_model(tiny_plan: Plan) -> None:
    plan = replace(tiny_plan, groups=("fleet",), workloads=tiny_plan.workloads[:1], repeats=1)
    findings = run_bench(plan, silent, lambda *_: 12.0)
    # 12 ms for 2 rounds of 1 model, and for 2 rounds of 3.
    assert {found.quantity: found.spread.median for found in findings.measurements} == {"fleet of 1": 6.0, "fleet of 3": 2.0}


def test_fleets_are_measured_for_one_vocabulary_alone(tiny_plan: Plan) -> None:
    other = replace(tiny_plan.workloads[0], words=73)
    plan = replace(tiny_plan, groups=("fleet", "eager"), workloads=(*tiny_plan.workloads[:1], other), repeats=1)
    names: list[str] = []
    run_bench(plan, lambda name, number, total: names.append(f"{number + 1}/{total} {name}"))
    assert names == ["1/4 correctness", "2/4 fleet, 8, 61", "3/4 eager, 8, 61", "4/4 eager, 8, 73"]


def test_a_round_steps_every_trainer(tiny_load: Workload) -> None:
    trainers = [tiny_load.trainer(tiny_load.config(VANILLA, "eager", seed), CPU) for seed in (1, 2)]
    fleet = Fleet(trainers, CPU)
    fleet.run(3)
    assert [trainer.progress.step for trainer in trainers] == [3, 3]
    fleet.run(2, members=1)
    assert [trainer.progress.step for trainer in trainers] == [5, 3]


def test_parts_do_the_work_of_a_step(tiny_load: Workload) -> None:
    parts = list(parts_of(tiny_load, CPU))
    names = [(part.name, part.scheme) for part in parts]
    assert names[:3] == [("recurrent stack", VANILLA), ("output loss", VANILLA), ("optimiser", VANILLA)]
    assert names[3:5] == [("table draw", VANILLA), ("table draw", ELEMENT_BATCH)]
    assert names[5:] == [("look-up", scheme) for scheme in (VANILLA, WORD, ELEMENT_BATCH, ELEMENT_SEQUENCE)]
    for part in parts:
        returned = part.call()
        assert isinstance(returned, tuple)
        assert all(torch.isfinite(tensor).all() for tensor in returned), part.name
        assert part.floor.milliseconds > 0
    gradients = parts[0].call()
    assert isinstance(gradients, tuple)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_parts_work_in_the_precision_that_is_measured(tiny_load: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[tuple[str, torch.dtype]] = set()
    for name in ("sample", "lookup"):
        true = getattr(EmbeddingPosterior, name)

        def recorded(*args: Any, name: str = name, true: Any = true, **kwargs: Any) -> Tensor:
            found: Tensor = true(*args, **kwargs)
            drawn.add((name, found.dtype))
            return found

        monkeypatch.setattr(EmbeddingPosterior, name, recorded)
    by_name = {part.name: part for part in parts_of(replace(tiny_load, precision="bf16"), CPU)}
    assert drawn == {("sample", torch.bfloat16), ("lookup", torch.bfloat16)}
    gradients = by_name["output loss"].call()
    assert isinstance(gradients, tuple)
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16, torch.bfloat16, torch.float32]


def test_a_red_gate_times_nothing(tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    red = [Check("a check", "of something", found=1.0, tolerance=0.0)]
    monkeypatch.setattr(suite, "run_gate", lambda _: red)
    findings = run_bench(tiny_plan, silent, lambda *_: pytest.fail("timed"))
    assert findings.failures == red
    assert findings.measurements == []


@pytest.mark.parametrize("group", ["eager", "schemes", "fleet"])
def test_a_step_that_is_not_finite_is_no_speed(tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    """It is asked for after the timing: on a GPU no step raises."""
    make = Workload.trainer

    def broken(*args: Any) -> Trainer:
        trainer = make(*args)
        # What steps on a GPU do where one has failed: they go on.
        trainer.step, trainer._failed_at = lambda: None, torch.tensor(3)  # type: ignore[assignment, method-assign, return-value]
        return trainer

    monkeypatch.setattr(Workload, "trainer", broken)
    with pytest.raises(InputError, match="not finite at step 3"):
        run_bench(replace(tiny_plan, groups=(group,)), silent, lambda *_: 1.0)


def test_running_out_of_memory_is_said_in_one_line(tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(suite, "_warm", full)
    with pytest.raises(InputError, match=r"out of GPU memory while measuring eager, 8, 61; use smaller --sizes"):
        run_bench(tiny_plan, silent)


def test_a_gpu_without_triton_is_refused(tiny_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "has_triton", lambda: False)
    with pytest.raises(InputError, match="Triton"):
        run_bench(replace(tiny_plan, device=torch.device("cuda")), silent)
