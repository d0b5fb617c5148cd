"""A fleet's runs are what they would be alone, and stay apart."""

from __future__ import annotations

import gc
import io
import json
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from networks_for_tests import tiny_config
from varsmooth import InputError, LanguageModel
from varsmooth.config import Config, load_config
from varsmooth.experiment import Reporting, record_unbuilt, session, start_run
from varsmooth.fleet import Trial, resume_fleet, start_fleet
from varsmooth.fleet.crew import Crew
from varsmooth.ops.lstm_layer.blocks import Gpu, choose
from varsmooth.report.runs import load_run
from varsmooth.train.folder import DiskFullError, RunFolder
from varsmooth.train.trainer import Trainer

QUIET = Reporting(Console(quiet=True))
STEPS = 12
COMMON = (f"train.steps={STEPS}", "train.eval_every=4", "train.save_every=5", "data.max_tokens=500")


def tiny(recipe: str, *settings: str) -> Config:
    return tiny_config(recipe, *COMMON, *settings)


def trials() -> list[Trial]:
    """Different methods, sizes, lengths and seeds."""
    return [
        Trial("plain", tiny("vanilla")),
        Trial("words", tiny("smoothing-kneser-ney", "train.seed=3", "train.steps=9", "train.average=0.9")),
        Trial("elements", tiny("element-kneser-ney", "model.hidden=12", "train.patience=1")),
    ]


def kept(run: Path) -> dict[str, bytes]:
    """What must not depend on how a run was trained."""
    names = ["metrics.jsonl", "model.safetensors", "config.toml", "vocab.txt", ".latest"]
    return {name: (run / name).read_bytes() for name in names} | {
        "state": (run / (run / ".latest").read_text().strip()).read_bytes()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each of the trials, trained as a single run."""
    out = tmp_path_factory.mktemp("alone")
    for trial in trials():
        start_run(trial.config, out / trial.name, QUIET)
    return out


def assert_as_alone(fleet: Path, alone: Path, names: list[str]) -> None:
    for name in names:
        found, expected = kept(fleet / name), kept(alone / name)
        for file in expected:
            assert found[file] == expected[file], (name, file)
        records = [RunFolder(folder / name).read_record() for folder in (fleet, alone)]
        for key in ("status", "stopped_because", "steps", "best", "results", "data", "config"):
            assert records[0][key] == records[1][key], (name, key)


@pytest.mark.parametrize("at_once", [None, 2, 3])
def test_a_fleet_equals_its_runs_alone_bit_for_bit(tmp_path: Path, alone: Path, at_once: int | None) -> None:
    outcome = start_fleet(trials(), tmp_path / "fleet", QUIET, at_once)
    assert outcome.signal is None
    assert [(record["name"], record["status"]) for record in outcome.records] == [
        (trial.name, "finished") for trial in trials()
    ]
    assert_as_alone(tmp_path / "fleet", alone, ["plain", "words", "elements"])
    record = RunFolder(tmp_path / "fleet" / "words").read_record()
    assert outcome.records[1] == {"name": "words", **record}


def test_collecting_garbage_leaves_out_what_was_there_before_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, build = [], Trainer.__init__

    def watched(self: Trainer, *arguments: Any) -> None:
        frozen.append(gc.get_freeze_count())
        build(self, *arguments)

    monkeypatch.setattr(Trainer, "__init__", watched)
    start_fleet([Trial("run", tiny("vanilla"))], tmp_path / "fleet", QUIET)
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0, "it is the process's again"


@pytest.mark.parametrize(("number", "at_once", "shares"), [(2, 2, True), (2, 1, False), (1, 8, False)])
def test_runs_share_a_card_only_where_there_are_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, at_once: int, shares: bool
) -> None:
    found, step = [], Trainer.step

    def watched(self: Trainer) -> Any:
        found.append(choose(64, 512, 2, Gpu(132, 232_448)) != choose_alone)
        return step(self)

    choose_alone = choose(64, 512, 2, Gpu(132, 232_448))
    monkeypatch.setattr(Trainer, "step", watched)
    start_fleet([Trial(f"run-{place}", tiny("vanilla")) for place in range(number)], tmp_path / "fleet", QUIET, at_once)
    assert set(found) == {shares}


def test_only_so_many_runs_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living: weakref.WeakSet[Trainer] = weakref.WeakSet()
    most, build = [], Trainer.__init__

    def watched(self: Trainer, *arguments: Any) -> None:
        build(self, *arguments)
        gc.collect()
        living.add(self)
        most.append(len(living))

    monkeypatch.setattr(Trainer, "__init__", watched)
    runs = [Trial(f"run-{seed}", tiny("vanilla", f"train.seed={seed}", "train.steps=2")) for seed in range(5)]
    start_fleet(runs, tmp_path / "fleet", QUIET, at_once=2)
    assert (len(most), max(most)) == (5, 2)


def test_runs_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, step = [], Trainer.step

    def watched(self: Trainer) -> Any:
        order.append(self.settings.seed)
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    runs = [Trial(f"run-{seed}", tiny("vanilla", f"train.seed={seed}", "train.steps=6")) for seed in (1, 2)]
    start_fleet(runs, tmp_path / "fleet", QUIET, at_once=2)
    assert order == [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2


def test_every_run_has_its_own_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, step = [], Trainer.step

    def watched(self: Trainer) -> Any:
        used.append((self.settings.threads, torch.get_num_threads()))
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    monkeypatch.setattr("varsmooth.experiment.run.final_results", lambda *_: iter(()))
    runs = [Trial(f"run-{threads}", tiny("vanilla", f"train.threads={threads}", "train.steps=5")) for threads in (1, 2)]
    records = start_fleet(runs, tmp_path / "fleet", QUIET, at_once=2).records
    assert used == [(1, 1)] * 4 + [(2, 2)] * 4 + [(1, 1), (2, 2)]
    assert [record["hardware"]["threads"] for record in records] == [1, 2]
    assert torch.get_num_threads() == 1


def test_a_corpus_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_corpus = [], session.open_corpus

    def watched(name: str, **options: Any) -> Any:
        opened.append(options["max_tokens"])
        return open_corpus(name, **options)

    monkeypatch.setattr(session, "open_corpus", watched)
    runs = [
        Trial(f"run-{seed}-{tokens}", tiny("vanilla", f"train.seed={seed}", f"data.max_tokens={tokens}", "train.steps=1"))
        for tokens in (400, 500)
        for seed in (1, 2)
    ]
    start_fleet(runs, tmp_path / "fleet", QUIET)
    assert opened == [400, 500]


def broken_step(self: Trainer) -> Any:
    raise RuntimeError("a\nbug")


def out_of_memory(self: Trainer) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def disk_full(self: Trainer) -> Any:
    raise DiskFullError(Path("there/state-00000001.safetensors"), None)


@pytest.mark.parametrize(
    ("step", "kind", "words"),
    [
        (broken_step, "error", "RuntimeError: a bug"),
        (out_of_memory, "out of memory", "out of GPU memory: train fewer runs at once"),
        (disk_full, "disk full", "disk full while writing there"),
    ],
)
def test_a_run_that_fails_at_a_step_does_not_stop_the_others(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, step: Any, kind: str, words: str
) -> None:
    sound = Trainer.step

    def poisoned(self: Trainer) -> Any:
        return step(self) if self.settings.seed == 66 and self.progress.step == 2 else sound(self)

    monkeypatch.setattr(Trainer, "step", poisoned)
    text = io.StringIO()
    runs = [Trial("bad", tiny("vanilla", "train.seed=66")), *trials()]
    outcome = start_fleet(runs, tmp_path / "fleet", Reporting(Console(file=text, width=80)), at_once=4)
    assert [record["status"] for record in outcome.records] == ["failed", "finished", "finished", "finished"]
    assert_as_alone(tmp_path / "fleet", alone, ["plain", "words", "elements"])
    record = RunFolder(tmp_path / "fleet" / "bad").read_record()
    assert (record["status"], record["stopped_because"], record["steps"]) == ("failed", kind, 2)
    assert record["reason"].startswith(words)
    (line,) = (line for line in text.getvalue().splitlines() if line.startswith("bad: failed"))
    assert line == f"bad: failed: {record['reason']}"


def test_a_run_that_cannot_be_built_or_diverges_is_recorded(tmp_path: Path, alone: Path) -> None:
    runs = [
        Trial("nowhere", tiny("vanilla", f"data.name={tmp_path / 'nowhere'}")),
        Trial("diverges", tiny("vanilla", "train.lr=1e30")),
        Trial("short", tiny("vanilla", "train.window=5000")),
        *trials(),
    ]
    outcome = start_fleet(runs, tmp_path / "fleet", QUIET, at_once=2)
    assert [record["status"] for record in outcome.records] == ["failed"] * 3 + ["finished"] * 3
    assert_as_alone(tmp_path / "fleet", alone, ["plain", "words", "elements"])
    reasons = {"nowhere": str(tmp_path / "nowhere"), "diverges": "not finite at step 2", "short": "train.window = 5000"}
    for (name, words), given in zip(reasons.items(), outcome.records, strict=False):
        record = RunFolder(tmp_path / "fleet" / name).read_record()
        assert record["status"] == "failed"
        assert words in record["reason"]
        assert given == {"name": name, **record}
        assert load_run(tmp_path / "fleet" / name).finished is False, "a report can read it"


def test_a_failed_run_is_tried_again_and_a_finished_one_left_alone(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, moved = tmp_path / "text", tmp_path / "moved"
    moved.mkdir()
    for split in ("train", "valid", "test"):
        (moved / f"{split}.txt").write_text("this is the text\n" * 60)
    late = Trial("late", tiny("vanilla", f"data.name={text}", "data.max_tokens=0"))
    outcome = start_fleet([late, *trials()], tmp_path / "fleet", QUIET, at_once=4)
    assert [record["status"] for record in outcome.records] == ["failed", "finished", "finished", "finished"]
    moved.rename(text)
    built, build = [], Trainer.__init__

    def watched(self: Trainer, *arguments: Any) -> None:
        build(self, *arguments)
        built.append(self.settings)

    monkeypatch.setattr(Trainer, "__init__", watched)
    before = {name: kept(tmp_path / "fleet" / name) for name in ("plain", "words", "elements")}
    records = [(tmp_path / "fleet" / name / "record.json").stat().st_mtime_ns for name in before]
    outcome = resume_fleet(tmp_path / "fleet", QUIET)
    assert [record["status"] for record in outcome.records] == ["finished"] * 4
    assert built == [late.config.train], "the finished ones are not even built"
    assert {name: kept(tmp_path / "fleet" / name) for name in before} == before
    assert [(tmp_path / "fleet" / name / "record.json").stat().st_mtime_ns for name in before] == records
    start_run(late.config, tmp_path / "late", QUIET)
    assert_as_alone(tmp_path / "fleet", tmp_path, ["late"])
    assert "reason" not in RunFolder(tmp_path / "fleet" / "late").read_record()


def signal_at(number: int, seed: int, at_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.step

    def signalled(self: Trainer) -> Any:
        if (self.settings.seed, self.progress.step) == (seed, at_step):
            signal.raise_signal(number)
        return step(self)

    monkeypatch.setattr(Trainer, "step", signalled)


@pytest.mark.parametrize(("at_once", "statuses"), [(3, ["stopped"] * 3), (1, ["finished", "stopped", "not started"])])
def test_a_signal_saves_the_running_ones_and_the_fleet_resumes(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, statuses: list[str]
) -> None:
    with monkeypatch.context() as patch:
        signal_at(signal.SIGTERM, seed=3, at_step=6, monkeypatch=patch)  # the second of the trials
        outcome = start_fleet(trials(), tmp_path / "fleet", QUIET, at_once)
    assert outcome.signal == signal.SIGTERM
    assert [record["status"] for record in outcome.records] == statuses
    assert outcome.records[1]["steps"] == 7, "the step in progress is completed"
    for record in outcome.records:
        if record["status"] == "stopped":
            states = RunFolder(tmp_path / "fleet" / record["name"]).state_paths()
            assert states[0].name == f"state-{record['steps']:08d}.safetensors"
    assert not (tmp_path / "fleet" / "elements").exists() or at_once == 3
    outcome = resume_fleet(tmp_path / "fleet", QUIET, at_once)
    assert (outcome.signal, [record["status"] for record in outcome.records]) == (None, ["finished"] * 3)
    assert_as_alone(tmp_path / "fleet", alone, ["plain", "words", "elements"])


def test_a_signal_in_a_final_evaluation_or_while_building_loses_nothing(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        find = session.open_corpus

        def slow(name: str, **options: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return find(name, **options)

        patch.setattr(session, "open_corpus", slow)
        outcome = start_fleet(trials(), tmp_path / "fleet", QUIET)
    assert (outcome.signal, {record["status"] for record in outcome.records}) == (signal.SIGINT, {"not started"})
    with monkeypatch.context() as patch:
        read = LanguageModel.read

        def interrupted(self: LanguageModel, *arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return read(self, *arguments)

        patch.setattr(LanguageModel, "read", interrupted)
        outcome = resume_fleet(tmp_path / "fleet", QUIET)
    assert outcome.signal == signal.SIGINT
    assert [(record["status"], record.get("steps")) for record in outcome.records] == [
        ("stopped", STEPS),
        ("not started", None),
        ("not started", None),
    ]
    assert resume_fleet(tmp_path / "fleet", QUIET).signal is None
    assert_as_alone(tmp_path / "fleet", alone, ["plain", "words", "elements"])


def test_a_stopped_run_that_did_not_come_to_its_turn_again_is_still_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        signal_at(signal.SIGTERM, seed=3, at_step=6, monkeypatch=patch)
        start_fleet(trials(), tmp_path / "fleet", QUIET, at_once=3)
    with monkeypatch.context() as patch:
        signal_at(signal.SIGTERM, seed=1, at_step=11, monkeypatch=patch)
        outcome = resume_fleet(tmp_path / "fleet", QUIET, at_once=1)
    assert [record["status"] for record in outcome.records] == ["stopped"] * 3
    assert [record["steps"] for record in outcome.records] == [12, 7, 4]


def test_a_fleet_belongs_to_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, step = [], Trainer.step

    def meddled(self: Trainer) -> Any:
        with pytest.raises(InputError, match="is in use by process") as error:
            resume_fleet(tmp_path / "fleet", QUIET)
        refusals.append(error.value)
        return step(self)

    monkeypatch.setattr(Trainer, "step", meddled)
    start_fleet([Trial("only", tiny("vanilla", "train.steps=1"))], tmp_path / "fleet", QUIET)
    assert len(refusals) == 1


def test_a_run_that_another_process_trains_is_not_touched(tmp_path: Path) -> None:
    run = tmp_path / "fleet" / "mine"
    with RunFolder.create(tmp_path / "other") as folder:
        folder.write(folder.config_path, b"")
    start_fleet([Trial("mine", tiny("vanilla", "train.lr=1e30"))], tmp_path / "fleet", QUIET)
    with RunFolder.open(run, lock=True):
        before = (run / "record.json").read_bytes()
        (record,) = resume_fleet(tmp_path / "fleet", QUIET).records
        assert record["status"] == "failed"
        assert "is in use by process" in record["reason"]
        assert (run / "record.json").read_bytes() == before


def test_a_run_that_another_process_has_brought_to_its_end_keeps_its_record(tmp_path: Path, alone: Path) -> None:
    copy = Path(shutil.copytree(alone / "plain", tmp_path / "run"))
    before = (copy / "record.json").read_bytes()
    assert record_unbuilt(load_config(copy / "config.toml"), copy, InputError("in use by process 7"))["status"] == "finished"
    assert (copy / "record.json").read_bytes() == before


def test_nothing_is_made_where_the_fleet_cannot_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="no GPU is available"):
        start_fleet([*trials(), Trial("gpu", tiny("vanilla", "train.device=cuda"))], tmp_path / "fleet", QUIET)
    with pytest.raises(InputError, match="--at-once must be at least 1, got 0"):
        start_fleet(trials(), tmp_path / "fleet", QUIET, at_once=0)
    assert not (tmp_path / "fleet").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="is not empty"):
        start_fleet(trials(), tmp_path / "full", QUIET)
    with pytest.raises(InputError, match=r"fleet\.json"):
        resume_fleet(tmp_path / "full", QUIET)


def test_progress_is_told_by_name(tmp_path: Path) -> None:
    for terminal in (False, True):
        text = io.StringIO()
        console = Console(file=text, width=100, force_terminal=terminal)
        start_fleet(trials()[:2], tmp_path / str(terminal), Reporting(console), at_once=2)
        lines = text.getvalue().splitlines()
        assert any("plain: finished after 12 steps" in line for line in lines)
        if terminal:
            assert any("all runs" in line for line in lines)
            assert any("words" in line and "/9" in line for line in lines)
        else:
            starts = [line.partition(",")[0] for line in lines if "finished" not in line]
            assert sorted(starts) == sorted(
                [f"plain: step {step}/12" for step in (4, 8, 12)] + [f"words: step {step}/9" for step in (4, 8, 9)]
            )


def test_the_list_is_on_disk_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, build = [], Trainer.__init__

    def watched(self: Trainer, *arguments: Any) -> None:
        listed = json.loads((tmp_path / "fleet" / "fleet.json").read_text())["trials"]
        seen.append([trial["name"] for trial in listed])
        build(self, *arguments)

    monkeypatch.setattr(Trainer, "__init__", watched)
    start_fleet([Trial(name, tiny("vanilla", "train.steps=1")) for name in "ab"], tmp_path / "fleet", QUIET)
    assert seen == [["a", "b"]] * 2


def test_another_list_takes_the_place_of_the_one_that_is_kept(tmp_path: Path) -> None:
    first, second = (Trial(name, tiny("vanilla", "train.steps=1")) for name in "ab")
    start_fleet([first], tmp_path / "fleet", QUIET)
    outcome = resume_fleet(tmp_path / "fleet", QUIET, instead=[second])
    assert [record["name"] for record in outcome.records] == ["b"]
    assert [trial["name"] for trial in json.loads((tmp_path / "fleet" / "fleet.json").read_text())["trials"]] == ["b"]


def test_of_what_waits_a_killed_run_with_a_state_comes_before_one_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [Trial(name, tiny("vanilla")) for name in "ab"]

    def killed(self: Trainer) -> None:
        if self.progress.step == STEPS - 1:
            raise KeyboardInterrupt
        step(self)

    step = Trainer.step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            start_fleet(listed[1:], tmp_path / "fleet", QUIET, 1)
    assert RunFolder(tmp_path / "fleet" / "b").read_record()["steps"] == 0, "it had no time to say how far it had come"
    begun: list[str] = []
    begin = Crew.begin
    monkeypatch.setattr(Crew, "begin", lambda self, trial, path: begun.append(trial.name) or begin(self, trial, path))
    resume_fleet(tmp_path / "fleet", QUIET, 1, instead=listed)
    assert begun == ["b", "a"]
