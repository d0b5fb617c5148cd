"""The folder of a run or of a fleet: made, or found to be one, and written by one process at a time."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from varsmooth.errors import InputError

LOCK = ".lock"
TRIES, A_LOOK = 5, 0.005
"""How often a lock is tried before it is another's, and the seconds between."""
LEFTOVER = re.compile(
    r"\.((fleet|spent|config|record)\.json|config\.toml|vocab\.txt|metrics\.jsonl|\.latest|[\w-]+\.safetensors)\.\w+\.tmp"
)
"""A file that a killed process had not finished writing."""


def resume_command(folder: Path) -> str:
    """Return the command that goes on with a run or a fleet, to be pasted into a shell."""
    return f"varsmooth train --resume {shlex.quote(str(folder))}"


class FolderLock:
    """Held by the process that writes in a folder; the system drops it with the process, however that ends.

    ``marker`` is the name of the file by which such a folder is known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    @classmethod
    def on_new(cls, path: Path | str, marker: str) -> Self:
        """Make a folder and lock it; a folder that holds anything is left as it is."""
        lock = cls(Path(path))
        try:
            lock.path.mkdir(parents=True, exist_ok=True)
            _refuse_contents(lock.path, marker)
            lock._take()
            _refuse_contents(lock.path, marker)  # again: another process may have been quicker
            _remove_leftovers(lock.path)
        except (OSError, ValueError) as error:
            lock.close()
            if isinstance(error, InputError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"the run folder {path} cannot be written: {reason}; choose another --out") from None
        return lock

    @classmethod
    def on_existing(cls, path: Path | str, marker: str) -> Self:
        """Lock a folder that is there, to go on with what it holds."""
        refuse_without(path, marker)
        lock = cls(Path(path))
        try:
            lock._take()
        except OSError as error:
            raise InputError(f"the run folder {path} cannot be locked: {error.strerror or error}") from None
        _remove_leftovers(lock.path)
        return lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _take(self) -> None:
        handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(handle)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise InputError(f"{self.path} is in use by process {holder}; wait until it ends, or stop it") from None
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle


def _lock(handle: int) -> None:
    """Lock a file for this process alone. Somebody may just be looking who holds it, which takes no time to speak of."""
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(A_LOOK)


def is_held(path: Path) -> bool:
    """Whether a process may be writing in a folder: so it is where one cannot look."""
    try:
        handle = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def refuse_without(path: Path | str, marker: str) -> None:
    """Refuse a folder that lacks the file by which it would be known."""
    try:
        (Path(path) / marker).stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        told = f"{marker}: {reason}{_found_inside(Path(path), marker)}"
        raise InputError(f"{path} is not a run folder: {told}") from None


def _found_inside(path: Path, marker: str) -> str:
    """Name the runs that a folder holds which is none itself."""
    try:
        names = sorted(entry.name for entry in path.iterdir() if (entry / marker).is_file())
    except (OSError, ValueError):
        return ""
    return f"; it holds runs: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""


def _refuse_contents(path: Path, marker: str) -> None:
    if all(entry.name == LOCK or LEFTOVER.fullmatch(entry.name) for entry in path.iterdir()):
        return
    if (path / marker).exists():
        raise InputError(f"{path} already holds a run; continue it with: {resume_command(path)}, or choose another --out")
    raise InputError(f"{path} is not empty; choose another --out, or to continue a run: varsmooth train --resume RUN")


def _remove_leftovers(path: Path) -> None:
    """Remove half-written files of a process that was killed; the lock says that nobody is writing them."""
    for entry in list(path.iterdir()):
        if LEFTOVER.fullmatch(entry.name):
            entry.unlink(missing_ok=True)
