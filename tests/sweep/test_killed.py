"""A sweep that is really killed, as one process and as several, ends with every trial done once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes_for_tests import PATIENCE, started, wait_until
from sweeps_for_tests import write_text
from varsmooth.sweep import Board, Store
from varsmooth.train.folder import RunFolder

pytestmark = pytest.mark.slow
STUDY = """
name = "killed"
data = "text"
sampler = "grid"
seeds = [2]
budget.steps = 60
[base]
model.hidden = 8
train.batch = 4
train.window = 5
train.device = "cpu"
train.eval_every = 10
train.save_every = 10
[space]
train.lr = [0.003, 0.01, 0.03]
[[arms]]
recipe = "vanilla"
[[arms]]
recipe = "smoothing-kneser-ney"
"""
KEPT = ("model.safetensors", "state-00000060.safetensors", "metrics.jsonl")


@contextmanager
def sweep(folder: Path, out: Path, at_once: int) -> Iterator[subprocess.Popen[str]]:
    arguments = ["-m", "varsmooth", "sweep", str(folder / "killed.toml"), "--out", str(out), "--at-once", str(at_once)]
    with started(arguments, stdout=subprocess.DEVNULL) as process:
        yield process


def completed(folder: Path, out: Path, at_once: int) -> None:
    with sweep(folder, out, at_once) as process:
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaint


def steps_on_disk(out: Path) -> int:
    return sum(line["step"] for run in out.glob("*/*-*") if run.is_dir() for line in RunFolder(run).read_metrics()[-1:])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_text(tmp_path_factory.mktemp("whole"))
    (folder / "killed.toml").write_text(STUDY)
    completed(folder, folder / "out", 1)
    return folder


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_sweep_killed_twice_ends_as_one_never_stopped(at_once: int, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for moment in (20, 200):
        with sweep(whole, out, at_once) as process:
            wait_until(lambda moment=moment: steps_on_disk(out) >= moment, process)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            process.communicate(
                timeout=PATIENCE
            )  # its workers notice that it has gone, and hold the pipe until they have saved
    completed(whole, out, at_once)
    board = Board.open(Store.in_folder(out))
    assert board.finished()
    for stage in board.stages():
        assert [trial.state.name for trial in stage.trials()] == ["COMPLETE"] * len(stage.wanted())
    runs = [path.parent for path in sorted((whole / "out").glob("*/*/record.json"))]
    assert len(runs) == 8
    for run in runs:
        for name in KEPT:
            assert (out / run.parent.name / run.name / name).read_bytes() == (run / name).read_bytes(), (run, name)


def test_a_signal_reaches_every_process(tmp_path: Path) -> None:
    folder, out = write_text(tmp_path), tmp_path / "out"
    (folder / "killed.toml").write_text(STUDY.replace("budget.steps = 60", "budget.steps = 1_000_000"))  # none ends by itself
    with sweep(folder, out, 2) as process:
        wait_until(lambda: len(list(out.glob("*/*/metrics.jsonl"))) == 2, process)
        process.send_signal(signal.SIGTERM)
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert complaint.endswith("varsmooth: stopped; the same command goes on\n")
    states = [RunFolder(path.parent).read_record()["status"] for path in out.glob("*/*/record.json")]
    assert states == ["stopped", "stopped"]
