"""Saving weights and training states so that damage is found and nothing is lost.

A file is plain safetensors. Its metadata hold one JSON object (one key, because safetensors writes several in random order):
the format, what the writer wants to remember, and the SHA-256 of the whole file as it is with 64 zeros in the digest's place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.train.folder import DiskFullError, RunFolder, state_step

__all__ = [
    "DiskFullError",
    "RunFolder",
    "State",
    "check_tensors",
    "load_latest_state",
    "load_model",
    "save_model",
    "save_state",
]

STATE_FORMAT = "varsmooth.state.1"
MODEL_FORMAT = "varsmooth.model.1"
STATES_KEPT = 2
METADATA_KEY = "varsmooth"
NO_DIGEST = b"0" * 64
BEFORE_DIGEST = rb'{"__metadata__":{"varsmooth":"{\"sha256\": \"'
"""How every header begins, so that the digest has a fixed place in the file, after eight bytes of length."""
DIGEST_START = 8 + len(BEFORE_DIGEST)
DIGEST_END = DIGEST_START + len(NO_DIGEST)


@dataclass(frozen=True)
class State:
    """A training state: everything that is needed to go on from ``step``."""

    step: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save_state(folder: RunFolder, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Save the state at ``step``; older ones go, down to the newest two, once it is completely on disk."""
    path = folder.state_path(step)
    folder.write(path, _sealed(STATE_FORMAT, tensors, {"step": step, "meta": dict(meta)}))
    folder.write(folder.latest_path, f"{path.name}\n".encode())
    older = [other for other in folder.state_paths() if state_step(other) < step]
    # A later state belongs to a future that was given up as unreadable; counting it would push out a good one.
    later = [other for other in folder.state_paths() if state_step(other) > step]
    for stale in older[STATES_KEPT - 1 :] + later:
        stale.unlink()


def load_latest_state(folder: RunFolder, warn: Callable[[str], None]) -> State | None:
    """Return the newest state that is sound, naming each unusable one through ``warn``; None when none was ever saved."""
    paths = folder.state_paths()
    expected = _expected_latest(folder)
    problems = []
    if expected is not None and (not paths or state_step(expected) > state_step(paths[0])):
        problems.append(f"{expected} is missing")
    for path in paths:
        try:
            state = _load_state(path)
        except InputError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warn(f"{problem}; going back to the state before it")
        return state
    if problems:
        raise InputError(f"no state in {folder.path} can be used: {'; '.join(problems)}; start anew with another --out")
    return None


def save_model(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write the weights of a model, and what identifies it, such as the checksums of its vocabulary and configuration."""
    with RunFolder(path.parent).full_disk_named(path):
        write_atomically(path, _sealed(MODEL_FORMAT, tensors, {"meta": dict(meta)}))


def load_model(path: Path, expected: Mapping[str, Any] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a model's tensors and meta; every entry of ``expected`` must be in its meta."""
    tensors, content = _unsealed(path, MODEL_FORMAT)
    meta = content.get("meta", {})
    for key, value in (expected or {}).items():
        if meta.get(key) != value:
            raise InputError(f"{path}: its {key} is {meta.get(key)!r}, not {value!r}: it does not belong to this run")
    return tensors, meta


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
    tensors, content = _unsealed(path, STATE_FORMAT)
    if content.get("step") != state_step(path):
        raise InputError(f"{path} holds the state of another step: {content.get('step')}")
    return State(content["step"], tensors, content.get("meta", {}))


def _sealed(format_name: str, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file whose digest covers all of it."""
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    description = json.dumps({"sha256": NO_DIGEST.decode(), "format": format_name, **content})
    data = safetensors.torch.save(own, {METADATA_KEY: description})
    if data[8:DIGEST_END] != BEFORE_DIGEST + NO_DIGEST:
        raise RuntimeError("safetensors no longer writes the metadata first")
    return data[:DIGEST_START] + hashlib.sha256(data).hexdigest().encode() + data[DIGEST_END:]


def _unsealed(path: Path, format_name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a sealed file: nothing in it is interpreted before its digest has been checked."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) < DIGEST_END or data[8:DIGEST_START] != BEFORE_DIGEST:
        raise InputError(f"{path} is cut off, damaged or not a file of varsmooth")
    if data[DIGEST_START:DIGEST_END] != _digest(data):
        raise InputError(f"{path} is damaged: its checksum does not match")
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        content = json.loads(header["__metadata__"][METADATA_KEY])
        if content["format"] != format_name:
            raise InputError(f"{path} has format {content['format']!r}, and this version of varsmooth reads {format_name!r}")
        return safetensors.torch.load(data), dict(content)
    except (safetensors.SafetensorError, KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError):
        raise InputError(f"{path} was not written by varsmooth") from None


def _digest(data: bytes) -> bytes:
    digest = hashlib.sha256(data[:DIGEST_START] + NO_DIGEST)
    digest.update(memoryview(data)[DIGEST_END:])
    return digest.hexdigest().encode()
