"""Saving weights and training states so that damage is found and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.train.folder import DiskFullError, RunFolder, full_disk_named, state_step
from varsmooth.train.sealed import Snapshot, unsealed

__all__ = [
    "DiskFullError",
    "RunFolder",
    "State",
    "check_tensors",
    "load_latest_state",
    "load_model",
    "model_snapshot",
    "save_model",
    "save_state",
    "state_snapshot",
    "write_model",
    "write_state",
]

STATE_FORMAT = "varsmooth.state.1"
MODEL_FORMAT = "varsmooth.model.1"
STATES_KEPT = 2


@dataclass(frozen=True)
class State:
    """A training state: everything that is needed to go on from ``step``."""

    step: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save_state(folder: RunFolder, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Save the state at ``step`` here and now."""
    write_state(folder, step, state_snapshot(step, tensors, meta))


def state_snapshot(step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], buffer: Tensor | None = None) -> Snapshot:
    """Copy what a state file holds, so that it can be written while training goes on."""
    return Snapshot(STATE_FORMAT, tensors, {"step": step, "meta": dict(meta)}, buffer)


def write_state(folder: RunFolder, step: int, snapshot: Snapshot) -> None:
    """Write the state at ``step``; older ones go, down to the newest two, once it is completely on disk."""
    path = folder.state_path(step)
    folder.write(path, snapshot.sealed())
    folder.write(folder.latest_path, f"{path.name}\n".encode())
    # A later state belongs to a future that was given up as unreadable; like what was found unreadable on the way back to an
    # older one, it is no backup, and counting it would push out a good one.
    given_up = {other for other in folder.state_paths() if state_step(other) > step} | (folder.unreadable - {path})
    older = [other for other in folder.state_paths() if state_step(other) < step and other not in given_up]
    for stale in [*older[STATES_KEPT - 1 :], *given_up]:
        if not stale.is_dir():  # nothing of ours
            stale.unlink(missing_ok=True)
    folder.unreadable.clear()


def load_latest_state(folder: RunFolder, warn: Callable[[str], None]) -> State | None:
    """Return the newest state that is sound, naming each unusable one through ``warn``; None when none was ever saved.

    What cannot be read is noted in the folder, and goes with the next state that is written.
    """
    paths = folder.state_paths()
    expected = _expected_latest(folder)
    missing, damaged = [], []
    if expected is not None and (not paths or state_step(expected) > state_step(paths[0])):
        missing.append(f"{expected} is missing")
    for path in paths:
        try:
            state = _load_state(path)
        except InputError as error:
            damaged.append(str(error))
            folder.unreadable.add(path)
            continue
        for problem in missing:
            warn(f"{problem}; going back to the state before it")
        for problem in damaged:
            warn(f"{problem}; going back to the state before it; this one is removed when the next is saved")
        return state
    if problems := missing + damaged:
        raise InputError(f"no state in {folder.path} can be used: {'; '.join(problems)}; start anew with another --out")
    return None


def save_model(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Save the weights of a model here and now, and what identifies it: the checksums of its vocabulary and configuration."""
    write_model(path, model_snapshot(tensors, meta))


def model_snapshot(tensors: Mapping[str, Tensor], meta: Mapping[str, Any], buffer: Tensor | None = None) -> Snapshot:
    """Copy what a model file holds, so that it can be written while training goes on."""
    return Snapshot(MODEL_FORMAT, tensors, {"meta": dict(meta)}, buffer)


def write_model(path: Path, snapshot: Snapshot) -> None:
    """Write the weights of a model."""
    with full_disk_named(path):
        write_atomically(path, snapshot.sealed())


def load_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a model's tensors and meta."""
    tensors, content = unsealed(path, MODEL_FORMAT)
    return tensors, content.get("meta", {})


def check_tensors(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors read from ``path`` whose names, shapes or types are not those of ``expected``."""
    if missing := sorted(expected.keys() - found.keys()):
        raise InputError(f"{path}: lacks the tensor {missing[0]!r}; it was made by another model or configuration")
    if extra := sorted(found.keys() - expected.keys()):
        raise InputError(f"{path}: has an unknown tensor {extra[0]!r}; it was made by another model or configuration")
    for name, tensor in expected.items():
        ours, theirs = _kind(tensor), _kind(found[name])
        if ours != theirs:
            raise InputError(f"{path}: tensor {name!r} is {theirs}, not {ours}; it was made by another configuration")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _expected_latest(folder: RunFolder) -> Path | None:
    """Return the state that was saved last; the note is a help and no more, so a damaged one is passed over."""
    try:
        path = folder.path / folder.latest_path.read_text("ascii").strip()
        state_step(path)
    except (OSError, ValueError):
        return None
    return path


def _load_state(path: Path) -> State:
    tensors, content = unsealed(path, STATE_FORMAT)
    if content.get("step") != state_step(path):
        raise InputError(f"{path} holds the state of another step: {content.get('step')}")
    return State(content["step"], tensors, content.get("meta", {}))
