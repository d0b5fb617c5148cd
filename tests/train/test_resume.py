"""Nothing is lost: real processes, really killed, end as one that was never stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from networks_for_tests import TINY
from processes_for_tests import PATIENCE, command, completed, wait_until
from varsmooth.cli import main
from varsmooth.experiment import Session, advance, continued_run
from varsmooth.experiment import run as run_module
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder, state_step
from varsmooth.train.trainer import Trainer

STEPS = 400
LAST_KILL = STEPS - 200
"""The saved step from which a run is killed at once: it must not end by itself before."""
SETTINGS = (
    *TINY,
    f"train.steps={STEPS}",
    "train.eval_every=5",
    "train.save_every=8",
    "train.schedule=plateau",
    "train.plateau_patience=1",
    "train.average=0.9",
    "data.max_tokens=500",
)


def start_arguments(out: Path, *settings: str) -> list[str]:
    changes = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    return ["train", "--recipe", "smoothing-kneser-ney", "--out", str(out), *changes]


def resume_arguments(run: Path) -> list[str]:
    return ["train", "--resume", str(run)]


def saved_step(run: Path) -> int:
    return max((state_step(path) for path in RunFolder(run).state_paths()), default=0) if run.exists() else 0


def in_this_process(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return int(leaving.value.code or 0)


def contents(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir() if path.name != ".lock"}


def outcome(run: Path) -> dict[str, Any]:
    """All that must not depend on interruptions: weights, last state, metrics, and the record but for its times."""
    files = contents(run)
    kept = ("model.safetensors", f"state-{STEPS:08d}.safetensors", "metrics.jsonl", "config.toml", "vocab.txt", ".latest")
    record = json.loads(files["record.json"])
    return {name: files[name] for name in kept} | {
        key: record[key] for key in ("status", "stopped_because", "steps", "best", "results", "parameters", "data", "config")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    completed(start_arguments(run))
    return run


def assert_same_outcome(run: Path, whole: Path) -> None:
    found, expected = outcome(run), outcome(whole)
    for name in expected:
        assert found[name] == expected[name], name


def test_an_uninterrupted_run_has_what_the_others_are_held_against(whole):
    assert outcome(whole)["status"] == "finished"
    assert [line["step"] for line in RunFolder(whole).read_metrics()] == list(range(5, STEPS + 1, 5))
    assert len(outcome(whole)["results"]) == 3 * 2 * 2
    assert {line["lr"] for line in RunFolder(whole).read_metrics()} > {0.003}, "the plateau is part of what must be resumed"


def test_a_run_of_a_version_that_lacked_a_setting_goes_on(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    record = json.loads((run / "record.json").read_text())
    del record["config"]["train"]["warm_up"]
    (run / "record.json").write_text(json.dumps(record))
    assert in_this_process(resume_arguments(run)) == 0


def holds_the_lock(run: Path, running: subprocess.Popen[str]) -> bool:
    return (run / ".lock").exists() and (run / ".lock").read_text() == f"{running.pid}\n"


def kill(run: Path, moment: int | str) -> None:
    """Start or continue the run and kill it a little after its start, its lock, or a saved step, long before its end."""
    arguments = resume_arguments(run) if (run / "config.toml").exists() else start_arguments(run)
    with command(arguments) as running:
        if moment == "lock":
            wait_until(lambda: holds_the_lock(run, running), running)
        elif moment != "start":
            wait_until(lambda: saved_step(run) >= int(moment), running)
        late = time.monotonic() + random.uniform(0, {"start": 1.0, "lock": 0.5}.get(str(moment), 0.05))
        wait_until(lambda: time.monotonic() >= late or saved_step(run) >= LAST_KILL, running)
        running.send_signal(signal.SIGKILL)
        running.wait(timeout=PATIENCE)
        assert running.returncode == -signal.SIGKILL


def test_a_run_killed_three_times_ends_as_one_never_stopped(whole, tmp_path):
    run = tmp_path / "run"
    for last in (0, 45, 90):
        kill(run, random.randint(last + 1, last + 40))
    assert in_this_process(resume_arguments(run)) == 0
    assert_same_outcome(run, whole)


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_as_one_never_stopped(whole, tmp_path):
    run = tmp_path / "run"
    moments: list[int | str] = sorted(random.sample(range(1, LAST_KILL), 12))
    for word in ["start", "lock"] * 4:
        moments.insert(random.randrange(12), word)
    assert len(moments) == 20
    for moment in moments:
        kill(run, moment)
    completed(resume_arguments(run))
    assert_same_outcome(run, whole)


def test_a_signal_ends_the_step_saves_it_and_says_how_to_go_on(whole, tmp_path):
    statuses = {signal.SIGINT: 130, signal.SIGTERM: 143}
    runs = {number: tmp_path / f"a run for {number.name}" for number in statuses}
    with ExitStack() as stack:
        processes = {number: stack.enter_context(command(start_arguments(run))) for number, run in runs.items()}
        for number, running in processes.items():
            wait_until(lambda number=number: saved_step(runs[number]) >= 20, running)
            running.send_signal(number)
        messages = {number: running.communicate(timeout=PATIENCE)[1] for number, running in processes.items()}
    for number, run in runs.items():
        step = saved_step(run)
        assert messages[number] == f"varsmooth: stopped at step {step}; to go on: varsmooth train --resume '{run}'\n"
        assert processes[number].returncode == statuses[number]
        record = RunFolder(run).read_record()
        assert (record["status"], record["signal"], record["steps"]) == ("stopped", number, step)
        assert 20 <= step < STEPS
        assert in_this_process(resume_arguments(run)) == 0
        assert_same_outcome(run, whole)


def test_a_second_process_is_refused(whole, tmp_path, capsys):
    run = tmp_path / "run"
    with command(start_arguments(run)) as running:
        wait_until(lambda: saved_step(run) >= 20, running)
        running.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, running.pid, os.WSTOPPED)  # its last thread may still be writing
        before = contents(run)
        assert in_this_process(resume_arguments(run)) == 2
        assert f"is in use by process {running.pid};" in capsys.readouterr().err
        assert in_this_process(start_arguments(run)) == 2
        assert "already holds a run" in capsys.readouterr().err
        assert contents(run) == before
    assert in_this_process(resume_arguments(run)) == 0
    assert_same_outcome(run, whole)


def test_a_run_is_never_overwritten(whole, capsys):
    before = contents(whole)
    assert in_this_process(start_arguments(whole, "train.seed=5")) == 2
    assert f"already holds a run; continue it with: varsmooth train --resume {whole}" in capsys.readouterr().err
    assert contents(whole) == before


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "[copy]"))


@pytest.fixture
def unfinished(copy: Path) -> Path:
    """A run that was killed while it was being evaluated at its end."""
    make_unfinished(copy)
    return copy


def make_unfinished(run: Path) -> None:
    folder = RunFolder(run)
    folder.write_record({**folder.read_record(), "status": "running", "results": []})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [flip, lambda path: os.truncate(path, 1000), Path.unlink], ids=["bit-flipped", "truncated", "missing"]
)
def test_a_damaged_state_is_named_and_the_one_before_it_used(whole, unfinished, capsys, damage):
    newest, before = RunFolder(unfinished).state_paths()
    damage(newest)
    state = before.read_bytes()
    assert in_this_process(resume_arguments(unfinished)) == 0
    assert f"warning: {newest} is " in capsys.readouterr().out
    assert_same_outcome(unfinished, whole)
    assert before.read_bytes() == state


def test_what_a_run_lacks_of_its_description_is_written_as_it_goes_on(whole, unfinished):
    for name in ("config.json", "vocab.txt"):
        (unfinished / name).unlink()
    assert in_this_process(resume_arguments(unfinished)) == 0
    for name in ("config.json", "vocab.txt"):
        assert (unfinished / name).read_bytes() == (whole / name).read_bytes()


def test_a_record_with_gaps_is_gone_on_with(whole, unfinished):
    record = json.loads((unfinished / "record.json").read_text())
    for gaps in ({"data": None}, {"trained": {}}, {"trained": {"steps": None, "seconds": None}}, {"seconds": None}):
        (unfinished / "record.json").write_text(json.dumps({**record, **gaps}))
        assert in_this_process(resume_arguments(unfinished)) == 0
        assert_same_outcome(unfinished, whole)


def with_last_state_before(run: Path, step: int) -> None:
    """Take a run back: what it is to go on from is the state at ``step``."""
    folder = RunFolder(run)
    state = folder.state_path(step)
    shutil.copy(next(path for path in folder.state_paths() if state_step(path) == step), run / "kept")
    for path in folder.state_paths():
        path.unlink()
    (run / "kept").rename(state)
    (run / ".latest").write_text(f"{state.name}\n")


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["bit-flipped", "missing"])
def test_a_best_model_that_is_lost_is_told_of_at_once_and_found_again(unfinished, capsys, damage):
    newest, before = RunFolder(unfinished).state_paths()
    damage(unfinished / "model.safetensors")
    kept = contents(unfinished)
    assert in_this_process(resume_arguments(unfinished)) == 2, "it has taken its last step"
    assert "and no evaluation is left; put it back, or start anew" in capsys.readouterr().err
    assert contents(unfinished) == kept
    with_last_state_before(unfinished, state_step(before))
    assert in_this_process(resume_arguments(unfinished)) == 0
    told = capsys.readouterr().out
    assert f"warning: {unfinished / 'model.safetensors'} " in told
    assert "it is the best model, of step " in told
    record = RunFolder(unfinished).read_record()
    assert state_step(before) < record["best"]["step"] <= STEPS
    assert record["results"], "by the new best"
    assert state_step(newest) == STEPS


def test_a_trial_that_is_not_to_be_evaluated_needs_no_best_model(tmp_path):
    run = tmp_path / "run"
    assert in_this_process(start_arguments(run, "train.steps=8", "evaluate.final=false")) == 0
    best = RunFolder(run).read_record()["best"]
    make_unfinished(run)
    (run / "model.safetensors").unlink()
    assert in_this_process(resume_arguments(run)) == 0
    record = RunFolder(run).read_record()
    assert (record["status"], record["best"]) == ("finished", best)


def test_without_a_sound_state_nothing_is_touched(unfinished, capsys):
    for path in RunFolder(unfinished).state_paths():
        flip(path)
    before = contents(unfinished)
    assert in_this_process(resume_arguments(unfinished)) == 2
    assert "no state in" in capsys.readouterr().err
    assert contents(unfinished) == before


def test_a_finished_run_is_left_as_it_is_and_its_figures_are_shown(copy, capsys):
    flip(copy / "model.safetensors")  # to evaluate it again would fail, and lose them
    before = contents(copy)
    assert in_this_process(resume_arguments(copy)) == 0
    shown, *figures = capsys.readouterr().out.splitlines()
    assert shown == f"{copy} has finished: nothing was trained or written; its figures:"
    tests = [found for found in json.loads(before["record.json"])["results"] if found["split"] == "test"]
    expected = [
        f"test perplexity {plain['perplexity']:.2f} by {plain['predict']}, {tuned['perplexity']:.2f} at its tuned temperature, "
        f"{tuned['scaled']['perplexity']:.2f} with tuned scales"
        for plain, tuned in zip(tests[::2], tests[1::2], strict=True)
    ]
    assert [line for line in figures if line.startswith("test perplexity")] == expected
    assert len(expected) == 3
    assert contents(copy) == before
    assert in_this_process([*resume_arguments(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(before["record.json"])
    assert contents(copy) == before


def test_a_finished_run_whose_configuration_was_changed_is_not_called_finished(copy, capsys):
    replace_text(copy / "config.toml", f"steps = {STEPS}", f"steps = {STEPS + 1}")
    before = contents(copy)
    assert in_this_process(resume_arguments(copy)) == 2
    assert "config.toml has changed" in capsys.readouterr().err
    assert contents(copy) == before


def test_a_run_that_finished_meanwhile_is_left_as_it_is(copy):
    before = contents(copy)
    with Screen(Console(quiet=True)) as screen:
        steps = continued_run(copy, Session(screen))
        assert advance(steps) is None
        assert advance(steps) == json.loads(before["record.json"])
    assert contents(copy) == before


class Killed(BaseException):
    """Ends a run where it is raised; like a kill, it leaves no time for a word in the record."""


def test_a_run_killed_in_its_final_evaluation_keeps_its_pace(whole, tmp_path, monkeypatch):
    run, killed = tmp_path / "run", Mock(side_effect=Killed)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "final_results", killed)
        with pytest.raises(Killed):
            main(start_arguments(run))
    left = RunFolder(run).read_record()
    assert (left["status"], left["steps"], left["trained"]["steps"]) == ("running", STEPS, STEPS)
    assert in_this_process(resume_arguments(run)) == 0
    assert_same_outcome(run, whole)
    record = RunFolder(run).read_record()
    for key in ("trained", "ms_per_step", "tokens_per_second"):
        assert record[key] == left[key], key
    assert record["seconds"] > left["seconds"] >= left["trained"]["seconds"] > 0


def test_the_pace_is_that_of_all_sessions(whole, tmp_path, monkeypatch):
    run, step = tmp_path / "run", Trainer.step

    def signalled(self: Trainer) -> Any:
        if self.progress.step in (40, 90):
            signal.raise_signal(signal.SIGTERM)
        return step(self)

    records = []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", signalled)
        for arguments in (start_arguments(run), resume_arguments(run), resume_arguments(run)):
            in_this_process(arguments)
            records.append(RunFolder(run).read_record())
    assert [record["trained"]["steps"] for record in records] == [41, 91, STEPS]
    seconds = [record["trained"]["seconds"] for record in records]
    assert 0 < seconds[0] < seconds[1] < seconds[2] <= records[2]["seconds"]
    for record in records:
        steps, spent = record["trained"]["steps"], record["trained"]["seconds"]
        assert record["ms_per_step"] == pytest.approx(1000 * spent / steps)
        assert record["tokens_per_second"] == pytest.approx(steps * 4 * 5 / spent)
    assert_same_outcome(run, whole)


def test_a_record_of_an_earlier_version_keeps_its_pace(whole, unfinished):
    folder = RunFolder(unfinished)
    record = {key: value for key, value in folder.read_record().items() if key != "trained"}
    folder.write_record({**record, "ms_per_step": 7.0})
    assert in_this_process(resume_arguments(unfinished)) == 0
    assert folder.read_record()["ms_per_step"] == pytest.approx(7.0)
    assert_same_outcome(unfinished, whole)


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    """A run to go on with, on a text that a user can change."""
    (tmp_path / "text").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "text" / f"{split}.txt").write_text("this is the text\n" * {"train": 60}.get(split, 20))
    run = tmp_path / "run"
    assert in_this_process(start_arguments(run, f"data.name={tmp_path / 'text'}", "train.steps=8")) == 0
    make_unfinished(run)
    return run


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        (lambda run: (run.parent / "text" / "train.txt").write_text("is this the text\n" * 60), "the train text has changed"),
        (lambda run: (run.parent / "text" / "valid.txt").write_text("this is text\n" * 20), "the valid text has changed"),
        (
            lambda run: (run.parent / "text" / "valid.txt").write_text("this is the text\n" * 20 + "anew\n"),
            "the text has changed since this run was started: ",
        ),
        (lambda run: (run / "config.toml").write_text(""), "config.toml has changed"),
        (lambda run: replace_text(run / "vocab.txt", "is\ntext\n", "is\ntex\n"), "vocab.txt has changed"),
        (lambda run: replace_text(run / "config.toml", "hidden = 8", "hidden = 9"), "config.toml has changed"),
        (lambda run: replace_text(run / "vocab.txt", "is\ntext\n", "text\nis\n"), "vocab.txt has changed"),
    ],
    ids=["train", "valid", "word", "emptied", "letter", "config", "vocab"],
)
def test_a_run_is_not_continued_with_something_else(own_text, capsys, change, culprit):
    change(own_text)
    before = contents(own_text)
    assert in_this_process(resume_arguments(own_text)) == 2
    assert culprit in capsys.readouterr().err
    assert contents(own_text) == before


def test_only_a_run_can_be_resumed_and_it_takes_no_other_flags(whole, tmp_path, capsys):
    for arguments, message in (
        (resume_arguments(tmp_path), "is not a run folder"),
        ([*resume_arguments(whole), "--set", "train.lr=1"], "--resume takes everything from the run"),
        ([*resume_arguments(whole), "--out", str(tmp_path)], "--resume takes everything from the run"),
    ):
        assert in_this_process(arguments) == 2
        assert message in capsys.readouterr().err
