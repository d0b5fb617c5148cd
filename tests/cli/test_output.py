"""Standard output that goes away: long work goes on, short work says so in one line."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from processes_for_tests import PATIENCE, started
from varsmooth.cli.output import open_streams, say

FULL = Path("/dev/full")
TRAINING = ["--data", "python", "--recipe", "vanilla/small", "--set", "model.hidden=8", "--set", "data.max_tokens=1500"]
BUFFERED = {"PYTHONUNBUFFERED": ""}
"""Whatever the one who runs the tests prefers."""
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def outcome(*arguments: str, close: bool = False, **options: Any) -> tuple[int, str]:
    """The status of a command and what it complains of; ``close``: nobody reads its output."""
    with started(["-m", "varsmooth", *arguments], **options) as process:
        if close:
            process.stdout.close()
            process.stdout = None
        _, complaint = process.communicate(timeout=PATIENCE)
        return process.returncode, complaint


def train(out: Path) -> list[str]:
    return ["train", *TRAINING, "--set", "train.steps=12", "--set", "train.eval_every=2", "--out", str(out)]


def status_of(out: Path) -> str:
    return str(json.loads((out / "record.json").read_text())["status"])


def test_training_goes_on_when_its_reader_has_gone(tmp_path: Path) -> None:
    assert outcome(*train(tmp_path / "run"), close=True) == (0, "")
    assert status_of(tmp_path / "run") == "finished"


@needs_full
def test_training_goes_on_when_the_disk_of_its_log_is_full(tmp_path: Path) -> None:
    with FULL.open("w") as full:
        assert outcome(*train(tmp_path / "run"), stdout=full) == (0, "")
    assert status_of(tmp_path / "run") == "finished"


@needs_full
@pytest.mark.parametrize("kept", ["nowhere", "full"])
def test_training_goes_on_when_nobody_hears_of_its_progress(tmp_path: Path, kept: str) -> None:
    """With --json progress goes to standard error, and the record alone to standard output."""
    arguments = ["-m", "varsmooth", *train(tmp_path / "run"), "--json"]
    with FULL.open("w") as full, started(arguments, **({"stderr": full} if kept == "full" else {})) as process:
        if kept == "nowhere":
            process.stderr.close()
            process.stderr = None
        shown, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, json.loads(shown)["status"]) == (0, "finished")


@pytest.mark.parametrize("command", [["recipes"], ["recipes", "--json"]])
def test_figures_that_nobody_reads_end_as_the_shell_expects(command: list[str]) -> None:
    assert outcome(*command, close=True, env=BUFFERED) == (128 + signal.SIGPIPE, "")


@needs_full
@pytest.mark.parametrize("buffering", [BUFFERED, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("command", [["recipes"], ["recipes", "--json"]], ids=" ".join)
def test_figures_that_cannot_be_written_are_told_of_in_one_line(command: list[str], buffering: dict[str, str]) -> None:
    with FULL.open("w") as full:
        assert outcome(*command, stdout=full, env=buffering) == (
            2,
            "varsmooth: standard output: No space left on device\n",
        )


@needs_full
def test_a_complaint_is_told_where_figures_cannot_be_written(tmp_path: Path) -> None:
    with FULL.open("w") as full:
        status, complaint = outcome("data", "check", "ptb", "--json", "--data-dir", str(tmp_path), stdout=full, env=BUFFERED)
    assert (status, complaint.count("\n")) == (2, 1)
    assert "are missing" in complaint


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_a_stream_that_is_closed_is_an_empty_one(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setattr(sys, closed, None)
    open_streams()
    stream = getattr(sys, closed)
    with stream:
        assert stream.read() == "" if closed == "stdin" else stream.write("into the void") == 13


def test_what_cannot_be_encoded_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    open_streams()
    print("日本 café", flush=True)
    assert written.getvalue() == b"\\u65e5\\u672c caf\\xe9\n"


@pytest.mark.parametrize("command", [["recipes", "vanilla"], ["data", "list"], ["eval", "nowhere"]])
def test_a_width_of_nothing_is_one_that_is_not_known(command: list[str]) -> None:
    shown = []
    for columns in ("0", "80"):
        with started(["-m", "varsmooth", *command], env={"COLUMNS": columns}) as process:
            shown.append(process.communicate(timeout=PATIENCE))
    assert shown[0] == shown[1] != ("", "")


def test_a_path_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"runs/[bold]/:car:/{'long' * 50} 1"
    say(path)
    assert capsys.readouterr().out == f"{path}\n"
