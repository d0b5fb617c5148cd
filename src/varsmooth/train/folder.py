"""A run's folder: its files and its records."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from varsmooth.errors import InputError
from varsmooth.files import for_json, name_file, not_utf8, write_atomically
from varsmooth.train.folder_lock import FolderLock, refuse_without, resume_command
from varsmooth.train.record_shape import check_line, check_shape

RECORD_FORMAT = "varsmooth.record.1"
CONFIG = "config.toml"
STATE_NAME = re.compile(r"state-(\d{8,})\.safetensors")


class DiskFullError(InputError):
    """There is no room left to write ``path``; ``last_good`` is the newest state on disk, None where there is none."""

    def __init__(self, path: Path, last_good: Path | None) -> None:
        kept = f"the last good state is {last_good.name}" if last_good else "no state has been saved yet"
        goes_on = (path.parent / CONFIG).exists() or path.exists()  # an older list of a fleet's runs
        then = f"run: {resume_command(path.parent)}" if goes_on else "give the same command again"
        super().__init__(f"disk full while writing {path}; {kept}; free some space and {then}")
        self.path = path
        self.last_good = last_good


class RunFolder:
    """The files of one run; a process that writes them holds the folder's lock."""

    def __init__(self, path: Path | str, lock: FolderLock | None = None) -> None:
        self.path = Path(path)
        self.config_path = self.path / CONFIG
        self.auto_path = self.path / "config.json"
        self.vocab_path = self.path / "vocab.txt"
        self.metrics_path = self.path / "metrics.jsonl"
        self.record_path = self.path / "record.json"
        self.model_path = self.path / "model.safetensors"
        self.latest_path = self.path / ".latest"
        self.unreadable: set[Path] = set()
        """states found damaged by this process"""
        self._lock = lock

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Make the folder of a new run and lock it; a folder that holds anything is left as it is."""
        return cls(path, FolderLock.on_new(path, CONFIG))

    @classmethod
    def open(cls, path: Path | str, *, lock: bool = False) -> Self:
        """Open the folder of an existing run: to read, or with ``lock`` to continue it."""
        if lock:
            return cls(path, FolderLock.on_existing(path, CONFIG))
        refuse_without(path, CONFIG)
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()

    def state_path(self, step: int) -> Path:
        return self.path / f"state-{step:08d}.safetensors"

    def state_paths(self) -> list[Path]:
        """Return the saved states, the newest first."""
        return _states_in(self.path)

    def write(self, path: Path, data: bytes | memoryview) -> None:
        """Write one of the run's files atomically; a full disk is a ``DiskFullError`` and leaves the old file."""
        with full_disk_named(path):
            write_atomically(path, data)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write ``record.json``; numbers that are not finite become null, which JSON can say."""
        text = json.dumps(for_json({"format": RECORD_FORMAT, **record}), indent=2, ensure_ascii=False, allow_nan=False)
        self.write(self.record_path, f"{text}\n".encode())

    def read_record(self, required: tuple[str, ...] = ()) -> dict[str, Any]:
        """Read ``record.json`` and check what it holds; ``required`` names what it must have in any case."""
        try:
            content = self.record_path.read_bytes()
        except OSError as error:
            raise InputError(f"{self.record_path}: cannot be read: {error.strerror or error}") from None
        record = _parsed(_decoded(content, self.record_path), str(self.record_path))
        if not isinstance(record, dict) or record.get("format") != RECORD_FORMAT:
            found = record.get("format") if isinstance(record, dict) else None
            raise InputError(f"{self.record_path}: not a record of a run (format {found!r}, expected {RECORD_FORMAT!r})")
        check_shape(record, self.record_path, required)
        return record

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to ``metrics.jsonl`` and see it to the disk; a line that does not fit is taken back."""
        line = json.dumps(for_json(metrics), allow_nan=False) + "\n"
        with full_disk_named(self.metrics_path), self.metrics_path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(line.encode()) < len(line.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(size)
                name_file(error, self.metrics_path)
                raise

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read ``metrics.jsonl``; a last line that was cut off is left out."""
        return [metrics for _, metrics in self._metrics_lines()]

    def truncate_metrics(self, after_step: int) -> None:
        """Drop what was logged after ``after_step``, and a last line that was cut off; the other bytes stay as they are."""
        kept = b"".join(line for line, metrics in self._metrics_lines() if metrics["step"] <= after_step)
        if self.metrics_path.exists() and self.metrics_path.read_bytes() != kept:
            self.write(self.metrics_path, kept)

    def _metrics_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        try:
            content = self.metrics_path.read_bytes()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        _decoded(whole, self.metrics_path)
        return [(line, self._parsed_metrics(number, line)) for number, line in enumerate(whole.splitlines(keepends=True), 1)]

    def _parsed_metrics(self, number: int, line: bytes) -> dict[str, Any]:
        where = f"{self.metrics_path}, line {number}"
        metrics = _parsed(line.decode(), where)
        if not isinstance(metrics, dict):
            raise InputError(f"{where}: must be an object, got {metrics!r:.80}")
        check_line(metrics, where)
        return metrics


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {error}") from None


def state_step(path: Path) -> int:
    """Return the step in a state file's name."""
    match = STATE_NAME.fullmatch(path.name)
    if match is None:
        raise InputError(f"{path} is not named like a state file")
    return int(match[1])


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn the system's 'no space left' into a ``DiskFullError`` about ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(path, next(iter(_states_in(path.parent)), None)) from error


def _states_in(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if STATE_NAME.fullmatch(path.name)]
    return sorted(found, key=state_step, reverse=True)
