from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth.bench import Plan
from varsmooth.bench.findings import Check
from varsmooth.bench.fleet import Fleet
from varsmooth.bench.gate import KERNELS, _fleet_is_alone, compare, losses, relative_distance, results, run_gate
from varsmooth.bench.workload import SCHEMES, VANILLA, Workload
from varsmooth.config import Precision
from varsmooth.model import RecurrentLanguageModel
from varsmooth.posterior import EmbeddingPosterior

CPU = torch.device("cpu")


@pytest.fixture
def plan(tiny_plan: Plan, tiny_load: Workload) -> Plan:
    return replace(tiny_plan, gate=(tiny_load,))


def failed(checks: Iterable[Check]) -> set[str]:
    return {check.name for check in checks if not check.passed}


def test_a_green_gate_has_checked_every_scheme(plan: Plan) -> None:
    checks = run_gate(plan)
    assert not failed(checks)
    subjects = {(check.name, check.subject) for check in checks}
    for scheme in SCHEMES:
        assert ("look-up is the table's draw", f"{scheme}, 8") in subjects
        assert (("gamma 0 is vanilla", f"{scheme}, 8, gradient of input_table") in subjects) == (scheme != VANILLA)
        assert (("gamma 0 is vanilla", f"{scheme}, 8, loss") in subjects) == (scheme != VANILLA)
    assert all(check.tolerance == 0 for check in checks), "on the CPU nothing may differ at all"


def test_a_look_up_that_is_not_the_tables_draw_turns_it_red(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    true = EmbeddingPosterior.lookup

    def wrong(self: EmbeddingPosterior, *args: Any, **kwargs: Any) -> Tensor:
        return true(self, *args, **kwargs) * (1 + 1e-6)

    monkeypatch.setattr(EmbeddingPosterior, "lookup", wrong)
    assert failed(run_gate(plan)) == {"look-up is the table's draw"}


def test_smoothing_at_gamma_0_turns_it_red(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    true = RecurrentLanguageModel.loss

    def wrong(self: RecurrentLanguageModel, inputs: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.smoothing.method == "noising":
            targets = targets.roll(1, 0)
        return true(self, inputs, targets, *args, **kwargs)

    monkeypatch.setattr(RecurrentLanguageModel, "loss", wrong)
    checks = run_gate(plan)
    assert failed(checks) == {"gamma 0 is vanilla"}
    assert {check.subject.partition(",")[0] for check in checks if not check.passed} == {"noising KN"}


def test_results_are_the_loss_and_every_gradient_by_name(tiny_load: Workload) -> None:
    trainer = tiny_load.trainer(tiny_load.config(VANILLA, "eager"), CPU)
    found = results(trainer)
    assert set(found) == {"loss", *(name for name, _ in trainer.network.named_parameters())}
    assert all(torch.isfinite(value).all() and value.abs().sum() > 0 for value in found.values())


def test_each_gradient_is_compared_by_its_own_norm() -> None:
    expected = {"loss": torch.tensor(2.0), "bias": torch.tensor([3.0, 4.0]), "small": torch.tensor([1e-6, 0.0])}
    found = {"loss": torch.tensor(2.0), "bias": torch.tensor([3.0, 4.5]), "small": torch.tensor([2e-6, 0.0])}
    checks = list(compare("kernels", "vanilla", found, expected, tolerance=0.2))
    assert [check.subject for check in checks] == ["vanilla, loss", "vanilla, gradient of bias", "vanilla, gradient of small"]
    assert [check.found for check in checks] == pytest.approx([0.0, 0.1, 1.0], rel=1e-5)
    assert [check.passed for check in checks] == [True, True, False]


def test_a_distance_from_zero_or_to_nan_never_passes() -> None:
    zero, one, none = torch.zeros(2), torch.ones(2), torch.full((2,), math.nan)
    assert relative_distance(zero, zero) == 0
    for pair in ((one, zero), (none, one), (none, zero), (one, none)):
        assert not Check("", "", relative_distance(*pair), 1.0).passed


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fleet_on_the_cpu_is_its_runs_one_after_the_other(plan: Plan, precision: Precision) -> None:
    load = replace(plan.gate[0], precision=precision)
    check = _fleet_is_alone(load, plan)
    assert check.found == 0


def test_a_fleet_whose_runs_disturb_each_other_turns_it_red(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    true = Fleet.run

    def wrong(self: Fleet, rounds: int, members: int | None = None) -> None:
        if len(self.trainers) > 1:
            self.trainers[1].network.bias.data.add_(torch.arange(61.0))
        true(self, rounds, members)

    monkeypatch.setattr(Fleet, "run", wrong)
    assert not _fleet_is_alone(plan.gate[0], plan).passed


def test_references_in_bf16_are_near_those_in_fp32(tiny_load: Workload) -> None:
    trainer = tiny_load.trainer(tiny_load.config(VANILLA, "eager"), CPU)
    checks = list(compare("", "", results(trainer, "bf16"), results(trainer), KERNELS["bf16"]))
    assert any(check.found > 0 for check in checks)
    assert all(check.passed for check in checks)


def test_losses_are_those_of_the_first_steps(tiny_load: Workload) -> None:
    config = tiny_load.config(VANILLA, "eager")
    found = losses(tiny_load.trainer(config, CPU), 3)
    assert found.shape == (3,)
    assert found.unique().numel() == 3
    assert torch.equal(found, losses(tiny_load.trainer(config, CPU), 3))
