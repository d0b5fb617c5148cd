"""Writing files so that a reader never meets half of one, nor what it cannot read."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError


def not_utf8(path: Path, error: UnicodeDecodeError) -> InputError:
    """Return what to raise for a file that cannot be decoded."""
    line = error.object[: error.start].count(b"\n") + 1
    return InputError(f"{path}: not UTF-8 at byte {error.start}, in line {line}")


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace ``path`` by ``data``: a crash at any moment leaves the old file or the new one, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~UMASK)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            name_file(error, path)
        raise
    sync_folder(path.parent)


def name_file(error: OSError, path: Path) -> None:
    """Have an error say which file it is about, where it does not: writing by a number knows no name."""
    if error.filename is None:
        error.filename = str(path)


def for_json(value: Any) -> Any:
    """Return nested values with None in place of infinity and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: for_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_place(path: Path, name: str) -> None:
    """Refuse a path below something that is not a folder, before long work whose result is to be written there."""
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"{name} {path}: {nearest} is a file, not a folder")


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal, reading it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Read once: to read it is to change it for a moment, and files are written by several threads.
UMASK = _umask()
