from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from varsmooth.errors import InputError
from varsmooth.train.folder import DiskFullError, RunFolder
from varsmooth.train.folder_lock import resume_command

HOLDER = """
import sys
from varsmooth.train.folder import RunFolder
folder = RunFolder.create(sys.argv[2]) if sys.argv[1] == "create" else RunFolder.open(sys.argv[2], lock=True)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run") as run:
        run.write(run.config_path, b"")
        yield run


@contextmanager
def other_process(how: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, how, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            yield process
        finally:
            process.kill()


def contents(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


def test_create_makes_the_folder_and_its_parents(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "some" / "run") as folder:
        assert list(contents(folder.path)) == [".lock"]
        assert folder.state_path(12).name == "state-00000012.safetensors"


def test_create_takes_an_empty_folder_and_one_that_was_only_locked(tmp_path: Path) -> None:
    for _ in range(2):
        RunFolder.create(tmp_path).close()
    (tmp_path / ".config.toml.abc_1.tmp").touch()
    with RunFolder.create(tmp_path) as folder:
        assert list(contents(folder.path)) == [".lock"]


def test_a_run_is_never_overwritten(folder: RunFolder) -> None:
    folder.close()
    before = contents(folder.path)
    with pytest.raises(InputError) as error:
        RunFolder.create(folder.path)
    assert f"already holds a run; continue it with: varsmooth train --resume {folder.path}" in str(error.value)
    assert resume_command(Path("my runs/1")) == "varsmooth train --resume 'my runs/1'", "to be pasted into a shell"
    assert "--out" in str(error.value)
    assert contents(folder.path) == before


@pytest.mark.parametrize("name", ["thesis.txt", ".hidden", ".thesis.txt.abc.tmp"])
def test_a_folder_with_anything_in_it_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=r"is not empty; choose another --out.*varsmooth train --resume"):
        RunFolder.create(tmp_path)
    assert contents(tmp_path) == {name: b"mine"}


def test_places_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / ("long" * 100), "nul\0", "/proc/absent/run"):
        with pytest.raises(InputError, match=r"cannot be written: .*; choose another --out"):
            RunFolder.create(path)


def test_a_parent_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        with pytest.raises(InputError, match="cannot be written: Permission denied; choose another --out"):
            RunFolder.create(tmp_path / "closed" / "run")
    finally:
        if was_root:
            os.seteuid(0)


def test_only_a_run_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file", "nul\0"):
        for lock in (False, True):
            with pytest.raises(InputError, match="is not a run folder"):
                RunFolder.open(path, lock=lock)
    assert list(contents(tmp_path)) == ["file"]
    for number in range(6):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "config.toml").touch()
        named = ", ".join(f"run-{each}" for each in range(min(number + 1, 5)))
        with pytest.raises(InputError, match=rf"; it holds runs: {named}(, \.\.\.)?$") as refused:
            RunFolder.open(tmp_path)
        assert str(refused.value).endswith("...") == (number == 5)


def test_opening_to_read_needs_no_lock(folder: RunFolder) -> None:
    assert RunFolder.open(folder.path).config_path == folder.config_path


def test_a_second_lock_in_the_same_process_is_refused_until_the_first_is_released(folder: RunFolder) -> None:
    with pytest.raises(InputError, match=f"is in use by process {os.getpid()};"):
        RunFolder.open(folder.path, lock=True)
    folder.close()
    RunFolder.open(folder.path, lock=True).close()


def test_a_second_process_is_refused_until_the_first_is_dead(folder: RunFolder) -> None:
    folder.close()
    with other_process("open", folder.path) as process:
        with pytest.raises(InputError, match=f"is in use by process {process.pid};"):
            RunFolder.open(folder.path, lock=True)
        process.kill()
        process.wait()
        RunFolder.open(folder.path, lock=True).close()


def test_two_processes_that_create_the_same_run(tmp_path: Path) -> None:
    with other_process("create", tmp_path / "run") as process, pytest.raises(InputError, match=f"process {process.pid};"):
        RunFolder.create(tmp_path / "run")


def test_half_written_files_of_a_killed_process_are_removed(folder: RunFolder) -> None:
    folder.close()
    leftovers = [
        ".state-00000100.safetensors.ab3_x.tmp",
        ".model.safetensors.x.tmp",
        "..latest.x.tmp",
        ".config.json.x.tmp",
        ".spent.json.x.tmp",
    ]
    for name in [*leftovers, ".mine.tmp", "notes.tmp"]:
        (folder.path / name).touch()
    RunFolder.open(folder.path)
    assert set(leftovers) <= set(contents(folder.path))
    RunFolder.open(folder.path, lock=True).close()
    assert set(contents(folder.path)) == {".lock", "config.toml", ".mine.tmp", "notes.tmp"}


def test_record_round_trip(folder: RunFolder) -> None:
    folder.write_record({"status": "running", "best": {"step": 3, "valid_perplexity": 95.125}, "name": "naïve"})
    expected = {"status": "running", "best": {"step": 3, "valid_perplexity": 95.125}, "name": "naïve"}
    assert folder.read_record() == {"format": "varsmooth.record.1", **expected}


RESULT = {"split": "test", "predict": "mean", "tuned_temperature": True, "perplexity": None}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"data": [1]}, "data must be an object, got [1]"),
        ({"data": {"checksums": 3}}, "data.checksums must be an object, got 3"),
        ({"results": 3}, "results must be a list, got 3"),
        ({"results": [1]}, "every entry of results must be an object, got 1"),
        ({"best": {"step": "x"}}, "best.step must be a whole number, got 'x'"),
        ({"best": {"step": 1, "valid_perplexity": "low"}}, "best.valid_perplexity must be a number, got 'low'"),
        ({"status": "finished", "results": []}, "best.step must be a whole number, got None"),
        ({"status": "finished", "best": {"step": 1}, "results": None}, "results must be a list, got None"),
        ({"trained": 7}, "trained must be an object, got 7"),
        ({"results": [RESULT, {**RESULT, "perplexity": "x"}]}, "perplexity must be a number, got 'x'"),
        ({"results": [RESULT, {**RESULT, "scaled": 3}]}, "scaled must be an object, got 3"),
        ({"results": [RESULT, {**RESULT, "tuned_temperature": 1}]}, "tuned_temperature must be true or false, got 1"),
        ({"results": [RESULT, {}]}, "split must be text, got None"),
        ({"versions": "3"}, "versions must be an object, got '3'"),
        ({"parameters": "x"}, "parameters must be a whole number, got 'x'"),
    ],
)
def test_a_record_in_which_something_is_not_what_it_should_be_is_refused(
    folder: RunFolder, changed: dict[str, Any], complaint: str
) -> None:
    folder.write_record({"status": "running", **changed})
    with pytest.raises(InputError) as caught:
        folder.read_record()
    where = ", result 2" if isinstance(changed.get("results"), list) and RESULT in changed["results"] else ""
    assert str(caught.value) == f"{folder.record_path}{where}: {complaint}"


def test_what_is_not_finite_becomes_null(folder: RunFolder) -> None:
    folder.write_record({"figures": [float("inf"), {"x": float("nan")}, (1.0, -float("inf"))]})
    assert folder.read_record()["figures"] == [None, {"x": None}, [1.0, None]]
    folder.append_metrics({"step": 1, "grad_norm": float("nan")})
    assert folder.metrics_path.read_text() == '{"step": 1, "grad_norm": null}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"{", "not valid JSON"),
        (b"{\n\xff", "not UTF-8 at byte 2, in line 2"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "format None, expected 'varsmooth.record.1'"),
        (b'{"format": "varsmooth.record.2"}', "format 'varsmooth.record.2', expected"),
    ],
)
def test_bad_records_are_named(folder: RunFolder, content: bytes | None, message: str) -> None:
    if content is not None:
        folder.record_path.write_bytes(content)
    with pytest.raises(InputError) as error:
        folder.read_record()
    assert str(folder.record_path) in str(error.value)
    assert message in str(error.value)


def log(folder: RunFolder, *steps: int) -> list[dict[str, Any]]:
    lines = [{"step": step, "lr": 0.1 * step} for step in steps]
    for line in lines:
        folder.append_metrics(line)
    return lines


def test_metrics_round_trip(folder: RunFolder) -> None:
    assert folder.read_metrics() == []
    folder.truncate_metrics(5)
    assert not folder.metrics_path.exists()
    lines = log(folder, 1, 2)
    assert folder.read_metrics() == lines


def test_metrics_after_a_step_are_dropped_and_the_rest_keeps_its_bytes(folder: RunFolder) -> None:
    log(folder, 1, 2)
    before = folder.metrics_path.read_bytes()
    log(folder, 3, 4)
    folder.truncate_metrics(2)
    assert folder.metrics_path.read_bytes() == before
    folder.truncate_metrics(0)
    assert folder.metrics_path.read_bytes() == b""


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(folder: RunFolder) -> None:
    log(folder, 1)
    whole = folder.metrics_path.read_bytes()
    log(folder, 2)
    both = folder.metrics_path.read_bytes()
    for length in range(len(whole), len(both)):
        folder.metrics_path.write_bytes(both[:length])
        assert [metrics["step"] for metrics in folder.read_metrics()] == [1]
        folder.truncate_metrics(10)
        assert folder.metrics_path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", ", line 2: not valid JSON"),
        (b"", ", line 2: not valid JSON"),
        (b"3", ", line 2: must be an object, got 3"),
        (b'{"lr": 1}', ", line 2: step must be a whole number, got None"),
        (b'{"step": "1"}', ", line 2: step must be a whole number, got '1'"),
        (b'{"step": 1, "valid_perplexity": "low"}', ", line 2: valid_perplexity must be a number, got 'low'"),
        (b"\xff", ": not UTF-8 at byte 23, in line 2"),
    ],
)
def test_a_damaged_line_is_named(folder: RunFolder, line: bytes, complaint: str) -> None:
    log(folder, 1)
    with folder.metrics_path.open("ab") as file:
        file.write(line + b"\n")
    log(folder, 2)
    for action in (folder.read_metrics, lambda: folder.truncate_metrics(1)):
        with pytest.raises(InputError) as caught:
            action()
        assert str(caught.value).startswith(f"{folder.metrics_path}{complaint}")


def test_full_disk_takes_the_unfinished_line_back(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log(folder, 1)
    before = folder.metrics_path.read_bytes()
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskFullError, match=r"disk full while writing .*metrics\.jsonl; no state has been saved yet"):
        log(folder, 2)
    assert folder.metrics_path.read_bytes() == before


def test_who_looks_whether_a_run_is_going_on_keeps_nobody_from_going_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder.create(tmp_path / "run").close()
    (tmp_path / "run" / "config.toml").touch()
    flock, tries = fcntl.flock, []

    def looked_at(handle: int, how: int) -> None:
        tries.append(how)
        if len(tries) < 3:
            raise BlockingIOError
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    with RunFolder.open(tmp_path / "run", lock=True):
        assert len(tries) == 3


def test_an_error_of_the_disk_names_the_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    for path, write in ((folder.metrics_path, lambda: log(folder, 1)), (folder.record_path, lambda: folder.write_record({}))):
        with pytest.raises(OSError, match="Input/output error") as caught:
            write()
        assert caught.value.filename == str(path)


def test_a_run_that_has_no_configuration_yet_is_started_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder.config_path.unlink(missing_ok=True)
    monkeypatch.setattr(os, "fsync", fsync)
    for advice in ("free some space and give the same command again", f"run: varsmooth train --resume {folder.path}"):
        with pytest.raises(DiskFullError) as caught:
            folder.write(folder.auto_path, b"")
        assert str(caught.value).endswith(advice)
        folder.config_path.touch()


def test_full_disk_leaves_the_old_record(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder.write_record({"status": "running"})
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskFullError):
        folder.write_record({"status": "finished"})
    assert folder.read_record()["status"] == "running"
