"""One process at a time: a lock that the system drops with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from varsmooth.text.progress import waiting


@contextmanager
def locked(path: Path, reason: str) -> Iterator[bool]:
    """Wait for the lock in this file; yields False where there can be none, as in a folder that is read-only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield False
        return
    try:
        yield _acquired(handle, reason)
    finally:
        os.close(handle)


def try_lock(path: Path, *, create: bool) -> int | None:
    """Take the lock in this file without waiting; the handle that is returned holds it until it is closed."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _acquired(handle: int, reason: str) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with waiting(reason):
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:  # some network file systems have no locks
        return False
    return True
