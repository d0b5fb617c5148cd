from __future__ import annotations

import errno
import hashlib
import math
import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.train import checkpoint, sealed
from varsmooth.train.checkpoint import (
    DiskFullError,
    RunFolder,
    check_tensors,
    load_latest_state,
    load_model,
    save_model,
    save_state,
)
from varsmooth.train.sealed import Snapshot

META = {"best": math.inf, "loss": 0.1 + 0.2, "epoch": 3, "words": "naïve \U0001f600", "nested": {"a": [1, None, True]}}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run") as run:
        run.write(run.config_path, b"")
        yield run


def tensors(value: float = 1.0) -> dict[str, Tensor]:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4) * value
    return {
        "weight": base,
        "tied": base,
        "view": base.T[1:],
        "half": torch.tensor([value, math.nan, -0.0], dtype=torch.bfloat16),
        "step": torch.tensor(2**53 + 1),
        "empty": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit: NaN and negative zero included."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        ours, theirs = (each.contiguous().flatten().view(torch.uint8) for each in (tensor, found[name]))
        assert torch.equal(ours, theirs), name


def latest(folder: RunFolder) -> tuple[checkpoint.State | None, list[str]]:
    warnings: list[str] = []
    return load_latest_state(folder, warnings.append), warnings


def state_names(folder: RunFolder) -> list[str]:
    return [path.name for path in folder.state_paths()]


def test_state_round_trip(folder: RunFolder) -> None:
    save_state(folder, 7, tensors(), META)
    state, warnings = latest(folder)
    assert state is not None
    assert (state.step, state.meta, warnings) == (7, META, [])
    assert_same(state.tensors, tensors())
    state.tensors["weight"].add_(1)  # training goes on in place


def test_nothing_saved_yet(folder: RunFolder) -> None:
    assert latest(folder) == (None, [])


def test_the_same_state_is_the_same_file(tmp_path: Path) -> None:
    for name in "abcdef":
        save_model(tmp_path / name, tensors(), META)
    assert len({(tmp_path / name).read_bytes() for name in "abcdef"}) == 1


def test_a_state_is_plain_safetensors(folder: RunFolder) -> None:
    save_state(folder, 7, tensors(), META)
    assert_same(safetensors.torch.load_file(folder.state_path(7)), tensors())


def test_the_newest_two_are_kept(folder: RunFolder) -> None:
    for step in (0, 5, 99_999_999, 100_000_000):
        save_state(folder, step, tensors(step), {})
    assert state_names(folder) == ["state-100000000.safetensors", "state-99999999.safetensors"]
    state, _ = latest(folder)
    assert state is not None
    assert state.step == 100_000_000


def test_the_new_state_is_complete_before_an_older_one_goes(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []
    unlink = Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:
        state, warnings = latest(folder)
        assert state is not None
        assert warnings == []
        removed.append((path.name, state.step))
        unlink(path, missing_ok)

    for step in (1, 2):
        save_state(folder, step, tensors(step), {})
    monkeypatch.setattr(Path, "unlink", watched)
    save_state(folder, 3, tensors(3), {})
    assert removed == [("state-00000001.safetensors", 3)]


def test_saving_a_step_again_replaces_it(folder: RunFolder) -> None:
    save_state(folder, 1, tensors(1), {"try": 1})
    save_state(folder, 1, tensors(2), {"try": 2})
    state, _ = latest(folder)
    assert state is not None
    assert state.meta == {"try": 2}
    assert state_names(folder) == ["state-00000001.safetensors"]


def test_memory_used_again_makes_the_same_file() -> None:
    now = {**tensors(2), "large": torch.arange(2000.0)}
    fresh = Snapshot("format", now, {"meta": META})
    for earlier in ({"w": torch.ones(5)}, {"w": torch.ones(5000)}, now):
        used = Snapshot("other", earlier, {"a": "long" * 10})
        again = Snapshot("format", now, {"meta": META}, used.buffer)
        assert bytes(again.sealed()) == bytes(fresh.sealed())
    assert again.buffer is used.buffer
    assert bytes(again.sealed()) == bytes(again.sealed()), "sealing twice changes nothing"


def test_a_bit_flip_in_any_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1])}, {"a": 1})
    good = path.read_bytes()
    for place in range(len(good)):
        for bit in {1 << place % 8, 0x20}:  # 0x20 changes the case of a letter
            damaged = bytearray(good)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            with pytest.raises(InputError, match="damaged"):
                load_model(path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, {"w": torch.arange(6.0)}, {"a": 1})
    good = path.read_bytes()
    for damaged in [*(good[:length] for length in range(len(good))), good + b"\0"]:
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            load_model(path)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "folder", "swapped", "missing"])
def test_a_damaged_state_is_named_and_the_one_before_it_used(folder: RunFolder, damage: str) -> None:
    for step in (1, 2):
        save_state(folder, step, tensors(step), {"step": step})
    path = folder.state_path(2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    match damage:
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            path.write_bytes(data)
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "swapped":
            path.write_bytes(folder.state_path(1).read_bytes())
    state, warnings = latest(folder)
    assert state is not None
    assert state.meta == {"step": 1}
    assert_same(state.tensors, tensors(1))
    assert len(warnings) == 1
    assert str(path) in warnings[0]


def test_no_usable_state_is_an_error_and_not_a_fresh_start(folder: RunFolder) -> None:
    for step in (1, 2):
        save_state(folder, step, tensors(step), {})
        folder.state_path(step).write_bytes(b"junk")
    with pytest.raises(InputError, match=r"no state .* can be used: .*state-00000002.*state-00000001"):
        latest(folder)
    for path in folder.state_paths():
        path.unlink()
    with pytest.raises(InputError, match=r"state-00000002\.safetensors is missing"):
        latest(folder)


@pytest.mark.parametrize("note", [b"", b"junk\n", b"\xff", b"../state-00000009.safetensors.x"])
def test_a_damaged_note_of_the_latest_state_does_no_harm(folder: RunFolder, note: bytes) -> None:
    save_state(folder, 1, tensors(), {})
    folder.latest_path.write_bytes(note)
    state, warnings = latest(folder)
    assert state is not None
    assert warnings == []


def test_unreadable_later_states_never_push_out_good_ones(folder: RunFolder) -> None:
    for step in (10, 20):
        save_state(folder, step, tensors(step), {})
    for step in (30, 40):
        folder.state_path(step).write_bytes(b"junk")
    state, warnings = latest(folder)
    assert state is not None
    assert (state.step, len(warnings)) == (20, 2)
    save_state(folder, 25, tensors(25), {})
    assert state_names(folder) == ["state-00000025.safetensors", "state-00000020.safetensors"]
    assert latest(folder)[1] == []


def test_a_state_found_damaged_never_pushes_out_the_one_gone_back_to(folder: RunFolder) -> None:
    for step in (500, 610):
        save_state(folder, step, tensors(step), {})
    os.truncate(folder.state_path(610), 100)
    state, warnings = latest(folder)
    assert state is not None
    assert state.step == 500
    assert warnings[0].endswith("going back to the state before it; this one is removed when the next is saved")
    assert folder.state_path(610).exists(), "nothing goes before the run has gone on"
    save_state(folder, 730, tensors(730), {})
    assert state_names(folder) == ["state-00000730.safetensors", "state-00000500.safetensors"]
    save_state(folder, 740, tensors(740), {})
    assert state_names(folder) == ["state-00000740.safetensors", "state-00000730.safetensors"]


def test_a_damaged_state_that_is_reached_again_is_replaced(folder: RunFolder) -> None:
    for step in (500, 610):
        save_state(folder, step, tensors(step), {})
    os.truncate(folder.state_path(610), 100)
    latest(folder)
    save_state(folder, 610, tensors(610), {})
    assert state_names(folder) == ["state-00000610.safetensors", "state-00000500.safetensors"]
    assert latest(folder)[1] == []


class FullDisk:
    """A disk that takes ``room`` more bytes, at the lowest layer that ``write_atomically`` and the metrics use."""

    def __init__(self, room: int) -> None:
        self.room = room

    def fdopen(self, handle: int, mode: str) -> Any:
        file = open(handle, mode, buffering=0)  # noqa: SIM115
        disk = self

        class Limited:
            def __enter__(self) -> Limited:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def write(self, data: bytes) -> int:
                written = file.write(data[: disk.room])
                disk.room -= written
                if written < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return written

            flush = staticmethod(file.flush)
            fileno = staticmethod(file.fileno)

        return Limited()


def assert_disk_full(folder: RunFolder, last_good: int) -> None:
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(DiskFullError) as error:
        save_state(folder, last_good + 1, tensors(9), {})
    assert error.value.last_good == folder.state_path(last_good)
    assert isinstance(error.value, InputError)
    for part in ("disk full", folder.state_path(last_good + 1), folder.state_path(last_good).name, f"--resume {folder.path}"):
        assert str(part) in str(error.value)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    state, warnings = latest(folder)
    assert state is not None
    assert (state.step, warnings) == (last_good, [])


@pytest.mark.parametrize("room", [0, 1, 100, 400])
def test_full_disk_while_writing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    for step in (1, 2):
        save_state(folder, step, tensors(step), {})
    monkeypatch.setattr(os, "fdopen", FullDisk(room).fdopen)
    assert_disk_full(folder, last_good=2)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_found_only_when_the_data_are_flushed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fsync(_: int) -> None:
        raise OSError(code, os.strerror(code))

    for step in (1, 2):
        save_state(folder, step, tensors(step), {})
    monkeypatch.setattr(os, "fsync", fsync)
    assert_disk_full(folder, last_good=2)


def test_full_disk_before_the_first_state_and_for_the_model(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdopen", FullDisk(10).fdopen)
    with pytest.raises(DiskFullError, match="no state has been saved yet") as error:
        save_model(folder.model_path, tensors(), {})
    assert error.value.last_good is None
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "config.toml"]


def test_other_errors_of_the_disk_are_not_called_a_full_one(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        save_state(folder, 1, tensors(), {})
    assert state_names(folder) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("cannot mount a small file system here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    with RunFolder.create(small_disk / "run") as folder:
        for step in (1, 2):
            save_state(folder, step, {"w": torch.full((10_000,), float(step))}, {})
        (small_disk / "filler").write_bytes(b"\0" * 150_000)
        with pytest.raises(DiskFullError) as error:
            save_state(folder, 3, {"w": torch.full((10_000,), 3.0)}, {})
        assert error.value.last_good == folder.state_path(2)
        assert sorted(path.name for path in folder.path.iterdir()) == [
            ".latest",
            ".lock",
            "state-00000001.safetensors",
            "state-00000002.safetensors",
        ]
        (small_disk / "filler").unlink()
        save_state(folder, 3, {"w": torch.full((10_000,), 3.0)}, {})
        state, _ = latest(folder)
        assert state is not None
        assert state.tensors["w"].eq(3).all()


def test_model_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, tensors(), {"vocab_checksum": "abc", **META})
    found, meta = load_model(path)
    assert_same(found, tensors())
    assert meta == {"vocab_checksum": "abc", **META}


def test_a_state_is_not_a_model(folder: RunFolder) -> None:
    save_state(folder, 1, tensors(), {})
    with pytest.raises(InputError, match=r"has format 'varsmooth.state.1', and this version .* reads 'varsmooth.model.1'"):
        load_model(folder.state_path(1))


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("exploded",)


def test_foreign_files_are_refused_and_nothing_in_them_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.safetensors"
    foreign = {"w": torch.zeros(40)}
    for content in (pickle.dumps(Bomb()), safetensors.torch.save(foreign), safetensors.torch.save(foreign, {"format": "pt"})):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"model\.safetensors is cut off, damaged or not a file of varsmooth"):
            load_model(path)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_model(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"not JSON",
        b'"}}',
        b'", \\"format\\": \\"varsmooth.model.1\\"}"},"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        b'", \\"format\\": \\"varsmooth.model.1\\"}"},"w":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}',
        b'\\"}"}}',
        b'\\", \\"format\\": 3}"}}',
    ],
)
def test_a_forged_file_with_a_right_digest_is_refused_in_one_line(tmp_path: Path, header: bytes) -> None:
    body = sealed.BEFORE_DIGEST + sealed.NO_DIGEST + header
    data = len(body).to_bytes(8, "little") + body + b"\0" * 4
    digest = hashlib.sha256(data).hexdigest().encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(data[: sealed.DIGEST_START] + digest + data[sealed.DIGEST_END :])
    with pytest.raises(InputError, match=r"was not written by varsmooth|has format 3"):
        load_model(path)


def test_tensors_are_checked_by_name_shape_and_type(tmp_path: Path) -> None:
    expected = {"a": torch.zeros(2, 3), "b": torch.zeros(1)}
    check_tensors(tmp_path, dict(expected), expected)
    with pytest.raises(InputError, match="lacks the tensor 'b'"):
        check_tensors(tmp_path, {"a": expected["a"]}, expected)
    with pytest.raises(InputError, match="unknown tensor 'c'"):
        check_tensors(tmp_path, {**expected, "c": torch.zeros(1)}, expected)
    with pytest.raises(InputError, match=r"tensor 'a' is float32 \[3, 2\], not float32 \[2, 3\]"):
        check_tensors(tmp_path, {**expected, "a": torch.zeros(3, 2)}, expected)
    with pytest.raises(InputError, match=r"tensor 'b' is int64 \[1\], not float32 \[1\]"):
        check_tensors(tmp_path, {**expected, "b": torch.zeros(1, dtype=torch.int64)}, expected)


def test_meta_is_json_and_nothing_else(folder: RunFolder) -> None:
    with pytest.raises(TypeError):
        save_state(folder, 1, tensors(), {"object": object()})
    assert state_names(folder) == []
