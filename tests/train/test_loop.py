from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from networks_for_tests import tiny_config, tiny_trainer
from varsmooth import InputError, LanguageModel
from varsmooth.config import Config
from varsmooth.experiment import Reporting, Session, new_run, start_run
from varsmooth.train import writer as writer_module
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder
from varsmooth.train.interruptions import Interrupted, Interruptions
from varsmooth.train.loop import Outcome, Reason, fit
from varsmooth.train.trainer import Trainer
from varsmooth.train.writer import Writer

QUIET = Reporting(Console(quiet=True))


class Silent:
    def stepped(self, step: int) -> None: ...

    def evaluated(self, metrics: dict[str, Any]) -> None: ...


def given(perplexity: float) -> Generator[None, None, float]:
    yield from ()
    return perplexity


def fitted(
    config: Config,
    tmp_path: Path,
    perplexities: list[float],
    reason_to_stop: Callable[[], Reason | None] = lambda: None,
    after_step: Callable[[Trainer], None] | None = None,
    ending: Callable[[RunFolder], None] | None = None,
) -> tuple[Trainer, Outcome, list[int], RunFolder]:
    """Train with made-up development perplexities; also return the steps at which a best model was saved."""
    trainer, left, saved = tiny_trainer(config), list(perplexities), []
    with RunFolder.create(tmp_path / "run") as folder, Writer(folder) as writer:
        steps = fit(
            trainer,
            writer,
            validate=lambda: given(left.pop(0)),
            save_best=lambda: saved.append(trainer.progress.step),
            ending=lambda: ending and ending(folder),
            reason_to_stop=reason_to_stop,
            display=Silent(),
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return trainer, end.value, saved, folder
            writer.flush()  # so that no state is left out
            if after_step:
                after_step(trainer)


def test_early_stopping(tmp_path):
    config = tiny_config("vanilla", "train.steps=100", "train.eval_every=3", "train.patience=2", "train.save_every=1000")
    trainer, outcome, saved, folder = fitted(config, tmp_path, [9, 8, 8.5, 7, 7, 7.5, 1])
    assert (outcome, trainer.progress.step, saved) == ("patience", 18, [3, 6, 12])
    assert [line["step"] for line in folder.read_metrics()] == [3, 6, 9, 12, 15, 18]
    assert [line["best_perplexity"] for line in folder.read_metrics()] == [9, 8, 8, 7, 7, 7]
    assert [path.name for path in folder.state_paths()] == ["state-00000018.safetensors"]


@pytest.mark.parametrize(("patience", "last"), [(0, 6), (1, 4)], ids=["steps", "patience"])
def test_the_end_is_told_before_its_state_is_saved(tmp_path, patience, last):
    config = tiny_config("vanilla", "train.steps=6", "train.eval_every=2", "train.save_every=2", f"train.patience={patience}")
    seen: list[list[str]] = []
    *_, folder = fitted(config, tmp_path, [5, 6, 7], ending=lambda folder: seen.append([p.name for p in folder.state_paths()]))
    newest = f"state-{last:08d}.safetensors"
    assert (len(seen), newest in seen[0]) == (1, False)
    assert folder.state_paths()[0].name == newest


def test_others_have_their_turn_while_the_last_state_is_written(tmp_path, monkeypatch):
    may_write, write_state = threading.Event(), writer_module.write_state
    monkeypatch.setattr(writer_module, "write_state", lambda *about: may_write.wait(60) and write_state(*about))
    trainer, turns = tiny_trainer(tiny_config("vanilla", "train.steps=3", "train.eval_every=3")), 0
    with RunFolder.create(tmp_path / "run") as folder, Writer(folder) as writer:
        for _ in fit(
            trainer,
            writer,
            validate=lambda: given(5.0),
            save_best=lambda: None,
            ending=lambda: None,
            reason_to_stop=lambda: None,
            display=Silent(),
        ):
            turns += 1
            if turns == 3 + 20:
                assert folder.state_paths() == []
                may_write.set()
        assert turns >= 3 + 20
        assert [path.name for path in folder.state_paths()] == ["state-00000003.safetensors"], "and nothing ends before it is"


def test_without_patience_all_steps_are_taken_and_the_last_is_evaluated(tmp_path):
    config = tiny_config("vanilla", "train.steps=11", "train.eval_every=4", "train.save_every=5")
    trainer, outcome, saved, folder = fitted(config, tmp_path, [9, 10, 11])
    assert (outcome, trainer.progress.step, saved) == ("steps", 11, [4])
    assert [line["step"] for line in folder.read_metrics()] == [4, 8, 11]
    assert [path.name for path in folder.state_paths()] == ["state-00000011.safetensors", "state-00000010.safetensors"]
    assert folder.read_metrics()[1]["epoch"] == 8 / trainer.steps_per_epoch


def test_an_evaluation_comes_once_per_epoch_unless_told_otherwise(tmp_path):
    trainer, *_, folder = fitted(tiny_config("vanilla", "train.steps=45"), tmp_path, [5] * 10)
    per_epoch = trainer.steps_per_epoch
    assert [line["step"] for line in folder.read_metrics()] == [*range(per_epoch, 45, per_epoch), 45]


def test_a_noted_signal_ends_training_before_another_step(tmp_path):
    interruptions = Interruptions()

    def after_step(trainer: Trainer) -> None:
        if trainer.progress.step == 4:
            signal.raise_signal(signal.SIGTERM)

    with interruptions:
        config = tiny_config("vanilla", "train.steps=9")
        trainer, outcome, _, folder = fitted(config, tmp_path, [5], lambda: interruptions.received, after_step)
    assert (outcome, trainer.progress.step) == (signal.SIGTERM, 4)
    assert [path.name for path in folder.state_paths()] == ["state-00000004.safetensors"]


def test_work_of_which_nothing_is_kept_is_left_at_once():
    with Interruptions() as interruptions:
        with pytest.raises(Interrupted) as left, interruptions.at_once():
            signal.raise_signal(signal.SIGINT)
        assert left.value.signal == signal.SIGINT
        signal.raise_signal(signal.SIGTERM)  # only noted now
        with pytest.raises(Interrupted), interruptions.at_once():
            pytest.fail("began although a signal was waiting")


def test_a_run_gives_way_after_every_step_and_before_its_first(tmp_path):
    config = tiny_config("vanilla", "train.steps=5", "data.max_tokens=400")
    steps = new_run(config, tmp_path / "run", Session(Screen(QUIET.console)))
    counted = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            record = end.value
            break
        counted += 1
    # While its last state is written it gives way as well, as often as that takes.
    assert counted >= 1 + 5 + len(record["results"]), "once built, after each step, after each final evaluation"
    assert record["status"] == "finished"


def test_out_of_memory_is_a_line_and_a_failed_run(tmp_path, monkeypatch):
    def exhausted(self: Trainer) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Trainer, "step", exhausted)
    with pytest.raises(InputError, match="out of GPU memory: train fewer runs at once"):
        start_run(tiny_config("vanilla", "data.max_tokens=400"), tmp_path / "run", QUIET)
    record = RunFolder(tmp_path / "run").read_record()
    assert (record["status"], record["stopped_because"]) == ("failed", "out of memory")


def test_an_error_of_the_program_is_recorded_and_not_hidden(tmp_path, monkeypatch):
    def broken(self: Trainer) -> Any:
        raise RuntimeError("a\nbug")

    monkeypatch.setattr(Trainer, "step", broken)
    with pytest.raises(RuntimeError):
        start_run(tiny_config("vanilla", "data.max_tokens=400"), tmp_path / "run", QUIET)
    record = RunFolder(tmp_path / "run").read_record()
    assert (record["status"], record["stopped_because"], record["reason"]) == ("failed", "error", "RuntimeError: a bug")


def test_the_threads_of_a_run_are_its_own(tmp_path, monkeypatch):
    used, step = set(), Trainer.step

    def watched(self: Trainer) -> Any:
        used.add(torch.get_num_threads())
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    monkeypatch.setattr("varsmooth.experiment.run.final_results", lambda *_: iter(()))
    before = torch.get_num_threads()
    start_run(tiny_config("vanilla", "train.threads=2", "train.steps=2", "data.max_tokens=400"), tmp_path / "run", QUIET)
    assert (used, torch.get_num_threads()) == ({2}, before)
    assert RunFolder(tmp_path / "run").read_record()["hardware"]["threads"] == 2


def test_a_failed_run_keeps_its_best_model_its_states_and_its_metrics(tmp_path, monkeypatch):
    step = Trainer.step

    def poisoned(self: Trainer) -> Any:
        if self.progress.step == 6:
            self.network.bias.data[0] = math.nan
        return step(self)

    monkeypatch.setattr(Trainer, "step", poisoned)
    config = tiny_config("vanilla", "train.steps=20", "train.eval_every=3", "train.save_every=4", "data.max_tokens=400")
    told = r"at step 7: lower train\.lr .*, and start anew with another --out; the best model so far \(step [36]\) is kept in"
    with pytest.raises(InputError, match=told):
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
