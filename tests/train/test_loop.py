from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from networks_for_tests import tiny_config, tiny_trainer
from varsmooth import InputError, LanguageModel
from varsmooth.config import Config
from varsmooth.experiment import Reporting, start_run
from varsmooth.train.folder import RunFolder
from varsmooth.train.loop import Interruptions, Outcome, fit
from varsmooth.train.trainer import Trainer

QUIET = Reporting(Console(quiet=True))


class Silent:
    def stepped(self, step: int) -> None: ...

    def evaluated(self, metrics: dict[str, Any]) -> None: ...


def fitted(config: Config, tmp_path: Path, perplexities: list[float]) -> tuple[Trainer, Outcome, list[int], RunFolder]:
    """Train with made-up development perplexities; also return the steps at which a best model was saved."""
    trainer, left, saved = tiny_trainer(config), list(perplexities), []
    with RunFolder.create(tmp_path / "run") as folder:
        outcome = fit(
            trainer,
            folder,
            validate=lambda: left.pop(0),
            save_best=lambda: saved.append(trainer.progress.step),
            interruptions=Interruptions(),
            display=Silent(),
        )
    return trainer, outcome, saved, folder


def test_early_stopping(tmp_path):
    config = tiny_config("vanilla", "train.steps=100", "train.eval_every=3", "train.patience=2", "train.save_every=1000")
    trainer, outcome, saved, folder = fitted(config, tmp_path, [9, 8, 8.5, 7, 7, 7.5, 1])
    assert (outcome, trainer.progress.step, saved) == (Outcome("patience"), 18, [3, 6, 12])
    assert [line["step"] for line in folder.read_metrics()] == [3, 6, 9, 12, 15, 18]
    assert [line["best_perplexity"] for line in folder.read_metrics()] == [9, 8, 8, 7, 7, 7]
    assert [path.name for path in folder.state_paths()] == ["state-00000018.safetensors"]


def test_without_patience_all_steps_are_taken_and_the_last_is_evaluated(tmp_path):
    config = tiny_config("vanilla", "train.steps=11", "train.eval_every=4", "train.save_every=5")
    trainer, outcome, saved, folder = fitted(config, tmp_path, [9, 10, 11])
    assert (outcome, trainer.progress.step, saved) == (Outcome("steps"), 11, [4])
    assert [line["step"] for line in folder.read_metrics()] == [4, 8, 11]
    assert [path.name for path in folder.state_paths()] == ["state-00000011.safetensors", "state-00000010.safetensors"]
    assert folder.read_metrics()[1]["epoch"] == 8 / trainer.steps_per_epoch


def test_an_evaluation_comes_once_per_epoch_unless_told_otherwise(tmp_path):
    trainer, *_, folder = fitted(tiny_config("vanilla", "train.steps=45"), tmp_path, [5] * 10)
    per_epoch = trainer.steps_per_epoch
    assert [line["step"] for line in folder.read_metrics()] == [*range(per_epoch, 45, per_epoch), 45]


def test_a_failed_run_keeps_its_best_model_its_states_and_its_metrics(tmp_path, monkeypatch):
    step = Trainer.step

    def poisoned(self: Trainer) -> Any:
        if self.progress.step == 6:
            self.network.bias.data[0] = math.nan
        return step(self)

    monkeypatch.setattr(Trainer, "step", poisoned)
    config = tiny_config("vanilla", "train.steps=20", "train.eval_every=3", "train.save_every=4", "data.max_tokens=400")
    with pytest.raises(InputError, match=r"at step 7: lower train\.lr .* best model so far \(step [36]\) is kept in"):
        start_run(config, tmp_path / "run", QUIET)
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.state_paths()] == ["state-00000004.safetensors"]
    assert [line["step"] for line in folder.read_metrics()] == [3, 6]
    assert (folder.read_record()["status"], folder.read_record()["stopped_because"]) == ("failed", "not finite")
    network = LanguageModel.load(folder.path).network
    assert all(torch.isfinite(parameter).all() for parameter in network.parameters())


def test_a_learning_rate_far_too_high_is_named(tmp_path):
    config = tiny_config("vanilla", "train.lr=1e30", "train.eval_every=1", "data.max_tokens=400")
    with pytest.raises(InputError, match=r"not finite at step 2: lower train\.lr \(now 1e\+30\)"):
        start_run(config, tmp_path / "run", QUIET)


def test_a_run_whose_perplexity_overflows_still_ends_with_a_model(tmp_path):
    config = tiny_config("vanilla", "train.lr=1000", "train.schedule=constant", "data.max_tokens=400")
    record = start_run(config, tmp_path / "run", QUIET)
    assert record["best"] == {"step": 8, "valid_perplexity": None}, "JSON has no infinity"
    assert RunFolder(tmp_path / "run").read_record() == record


def test_the_best_model_has_the_averaged_weights_and_training_goes_on_with_the_others(tmp_path):
    states = {}
    for average in (0.0, 0.9):
        config = tiny_config(
            "vanilla", f"train.average={average}", "train.steps=6", "train.eval_every=2", "data.max_tokens=400"
        )
        start_run(config, tmp_path / str(average), QUIET)
        states[average] = load_file(RunFolder(tmp_path / str(average)).state_path(6))
    model = load_file(tmp_path / "0.9" / "model.safetensors")
    for name in (name for name in model if name.startswith("weight.")):
        assert torch.equal(states[0.9][name], states[0.0][name])
        assert torch.equal(states[0.9][name.replace("weight.", "average.")], model[name])
        assert not torch.equal(model[name], states[0.0][name])
