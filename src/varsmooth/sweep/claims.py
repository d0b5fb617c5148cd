"""Locks that say which slot a process of this machine works on; the system drops them with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

FOLDER = ".claims"


class Claim:
    """A slot that this process alone works on."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Claims:
    """The claims of the processes that share a folder: a sweep's own, or that of the SQLite file which several sweeps share."""

    def __init__(self, out: Path, database: Path | None = None) -> None:
        self.out = out
        self.folder = (database or out.absolute()) / FOLDER
        self.place = f"{socket.gethostname()}:{out.absolute()}"
        """names this folder among those of all machines"""

    def take(self, name: str) -> Claim | None:
        """Claim a slot; None where a process that lives has done so."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return Claim(handle)
