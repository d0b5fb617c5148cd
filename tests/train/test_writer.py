from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth.train import writer as writer_module
from varsmooth.train.checkpoint import DiskFullError, load_latest_state, load_model, save_model, save_state
from varsmooth.train.folder import RunFolder
from varsmooth.train.sealed import Snapshot
from varsmooth.train.writer import Writer


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run") as run:
        yield run


def some(value: float = 1.0) -> dict[str, Tensor]:
    return {"weight": torch.full((3, 4), value), "step": torch.tensor(7), "half": torch.tensor([math.nan]).bfloat16()}


class Gate:
    """Lets the writer's jobs through one at a time and notes them; ``model 2`` is a model whose weights are all 2."""

    def __init__(self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open = threading.Semaphore(0), threading.Event()
        self.written: list[str] = []
        self.folder = folder
        write_model, write_state = writer_module.write_model, writer_module.write_state

        def model(path: Path, snapshot: Snapshot) -> None:
            self.wait_in_line()
            write_model(path, snapshot)
            self.written.append(f"model {load_model(path)[0]['weight'][0, 0]:.0f}")

        def state(folder: RunFolder, step: int, snapshot: Snapshot) -> None:
            self.wait_in_line()
            write_state(folder, step, snapshot)
            self.written.append(f"state {step}")

        monkeypatch.setattr(writer_module, "write_model", model)
        monkeypatch.setattr(writer_module, "write_state", state)

    def wait_in_line(self) -> None:
        self.entered.release()
        assert self.open.wait(60)

    def wait_until_writing(self) -> None:
        assert self.entered.acquire(timeout=60)


@pytest.fixture
def gate(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(folder, monkeypatch)


def test_the_files_are_those_that_are_written_at_once(folder: RunFolder, tmp_path: Path) -> None:
    with Writer(folder) as writer:
        writer.model(some(2), {"step": 2})
        writer.state(5, some(3), {"best": math.inf})
    save_model(tmp_path / "model", some(2), {"step": 2})
    assert folder.model_path.read_bytes() == (tmp_path / "model").read_bytes()
    with RunFolder.create(tmp_path / "other") as other:
        save_state(other, 5, some(3), {"best": math.inf})
        assert folder.state_path(5).read_bytes() == other.state_path(5).read_bytes()
        assert folder.latest_path.read_bytes() == other.latest_path.read_bytes()


def test_what_is_written_is_what_was_there_when_it_was_handed_over(folder: RunFolder, gate: Gate) -> None:
    tensors, meta = some(1), {"sums": [1.0]}
    with Writer(folder) as writer:
        writer.model(tensors, meta)
        writer.state(1, tensors, meta)
        tensors["weight"].fill_(9)
        meta["sums"].append(2.0)
        gate.open.set()
    state = load_latest_state(folder, pytest.fail)
    assert state is not None
    for found, found_meta in (load_model(folder.model_path), (state.tensors, state.meta)):
        assert torch.equal(found["weight"], some(1)["weight"])
        assert found_meta == {"sums": [1.0]}


def test_of_the_models_that_wait_only_the_newest_is_written(folder: RunFolder, gate: Gate) -> None:
    with Writer(folder) as writer:
        writer.model(some(1), {})
        gate.wait_until_writing()
        for value in (2, 3, 4):
            writer.model(some(value), {})
        gate.open.set()
        writer.flush()
        assert gate.written == ["model 1", "model 4"]


@pytest.mark.parametrize(
    ("handed_over", "written"),
    [
        (["model 2", "state 1"], ["model 2", "state 1"]),
        (["state 1", "model 2"], ["state 1", "model 2"]),
        (["model 2", "state 1", "model 3"], ["model 3", "state 1"]),
        (["state 1", "model 2", "model 3"], ["state 1", "model 3"]),
    ],
)
def test_a_state_never_comes_before_the_model_that_was_best(
    folder: RunFolder, gate: Gate, handed_over: list[str], written: list[str]
) -> None:
    with Writer(folder) as writer:
        writer.model(some(1), {})
        gate.wait_until_writing()
        for job in handed_over:
            kind, number = job.split()
            if kind == "model":
                writer.model(some(int(number)), {})
            else:
                writer.state(int(number), some(), {})
        gate.open.set()
        writer.flush()
        assert gate.written == ["model 1", *written]


def test_a_state_waits_for_the_one_that_waits(folder: RunFolder, gate: Gate) -> None:
    with Writer(folder) as writer:
        writer.state(1, some(), {})
        gate.wait_until_writing()
        assert not writer.behind, "the first is being written and waits no more"
        writer.state(2, some(), {})
        assert writer.behind
        third = threading.Thread(target=writer.state, args=(3, some(), {}))
        third.start()
        gate.open.set()
        third.join()
        writer.flush()
        assert gate.written == ["state 1", "state 2", "state 3"]
        assert not writer.behind
    assert [path.name for path in folder.state_paths()] == ["state-00000003.safetensors", "state-00000002.safetensors"]


def full_disk(path: Path, snapshot: Snapshot) -> None:
    raise DiskFullError(path, None)


@pytest.mark.parametrize(
    "call", [Writer.flush, lambda w: w.model(some(), {}), lambda w: w.state(8, some(), {})], ids=["flush", "model", "state"]
)
def test_a_full_disk_is_raised_by_the_next_call_and_nothing_follows_it(
    folder: RunFolder, gate: Gate, monkeypatch: pytest.MonkeyPatch, call: Callable[[Writer], Any]
) -> None:
    writer = Writer(folder)
    writer.model(some(1), {})
    gate.wait_until_writing()
    monkeypatch.setattr(writer_module, "write_model", full_disk)
    writer.model(some(2), {})
    writer.state(1, some(), {})  # its best model will not get to the disk, so neither must this
    gate.open.set()
    with writer._changed:
        assert writer._changed.wait_for(lambda: writer._error is not None, 60)
    with pytest.raises(DiskFullError):
        call(writer)
    with pytest.raises(DiskFullError):
        writer.__exit__(None, None, None)
    assert gate.written == ["model 1"]
    assert folder.state_paths() == []


def left_with_an_error(folder: RunFolder, gate: Gate) -> None:
    with Writer(folder) as writer:
        writer.model(some(1), {})
        writer.state(1, some(), {})
        gate.open.set()
        raise KeyError


def test_a_failure_does_not_hide_the_error_on_its_way(folder: RunFolder, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_after_the_gate(path: Path, snapshot: Snapshot) -> None:
        gate.wait_in_line()
        full_disk(path, snapshot)

    monkeypatch.setattr(writer_module, "write_model", full_after_the_gate)
    with pytest.raises(KeyError):
        left_with_an_error(folder, gate)
    assert gate.written == []


def test_an_error_elsewhere_leaves_nothing_unwritten(folder: RunFolder, gate: Gate) -> None:
    with pytest.raises(KeyError):
        left_with_an_error(folder, gate)
    assert gate.written == ["model 1", "state 1"]


def test_what_is_no_json_is_refused_before_it_waits(folder: RunFolder) -> None:
    with Writer(folder) as writer:
        with pytest.raises(TypeError):
            writer.state(1, some(), {"object": object()})
        writer.flush()
    assert folder.state_paths() == []


def test_memory_is_used_again(folder: RunFolder) -> None:
    with Writer(folder) as writer:
        for step in range(1, 6):
            writer.model(some(step), {"step": 10**step})
            writer.state(step, some(-step), {})
            writer.flush()
        assert [len(spare) for spare in writer._spare.values()] == [1, 1]
    found, meta = load_model(folder.model_path)
    assert torch.equal(found["weight"], some(5)["weight"])
    assert meta == {"step": 10**5}


@pytest.mark.gpu
def test_a_copy_from_the_gpu_keeps_its_place_in_the_stream(folder: RunFolder) -> None:
    device = torch.device("cuda")
    stream = torch.cuda.Stream(device)
    with Writer(folder) as writer, torch.cuda.stream(stream):
        tensors = {"weight": torch.zeros(4000, 1000, device=device), "tied": torch.zeros(3, device=device)}
        for _ in range(50):
            tensors["weight"] += 1
        writer.model(tensors, {})
        for _ in range(50):
            tensors["weight"] += 1
    found, _ = load_model(folder.model_path)
    assert found["weight"].eq(50).all()
    assert tensors["weight"].eq(100).all()
