"""The folder of a sweep: which study it holds, and where that study's database and text are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from varsmooth.cli.app import errors
from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.sweep import FILE, GRACE, NOTE, Board, Store, Study, check_url, file_url, shown
from varsmooth.text.reading import exists

OWN = (FILE, NOTE, f".{NOTE}")
"""How the names begin of what a sweep makes before its note is there; another worker may be starting it just now."""
HIDDEN = ":***@"
"""What stands for a password in the note."""


def started_store(out: Path, storage: str | None, study: Study, grace: int) -> Store:
    """Open the database of a sweep, and note in its folder which one it is; a folder serves one study."""
    if grace < 1:
        raise InputError(f"--grace must be at least 1 second, got {grace}")
    note, url = _note(out), check_url(storage) if storage else None
    if note and note["study"] != study.name:
        raise InputError(f"{out} holds the study {note['study']!r}, not {study.name!r}; choose another --out")
    if note and url and note["storage"] != shown(url):
        raise InputError(f"{out} was started with {_started_with(note)}, not {shown(url)}; choose another --out")
    if note and note["storage"] and not url:
        raise InputError(f"{out} was started with --storage {note['storage']}; give it again")
    if not note and exists(out) and not all(entry.name.startswith(OWN) for entry in _entries(out)):
        raise InputError(f"{out} is not empty and holds no sweep; choose another --out")
    store = _opened(url, grace) if url else _in_folder(out)
    if not note:
        data = study.arms[0].config.data
        place = {"name": data.name, "data_dir": data.data_dir}
        about = {"study": study.name, "storage": url and shown(url), "data": place}
        write_atomically(out / NOTE, json.dumps(about).encode())
    return store


def opened_board(out: Path | None, storage: str | None, study: str | None) -> Board:
    """Open a study that has been started, from its folder or its URL."""
    note = _note(out) if out is not None else None
    if storage is None and note is None:
        raise InputError(f"{out} is not the folder of a sweep: {NOTE} is missing")
    url, known = storage or (note or {}).get("storage"), note or {}
    if url is None:
        assert out is not None
        if not exists(out / FILE):
            raise InputError(f"{out / FILE} is missing; varsmooth sweep with the same study makes it anew from the runs")
        return Board.open(_opened(file_url(out)), study, known.get("data"))
    if HIDDEN in url:
        raise InputError(f"{url}: the password is not kept in {out}: give the whole URL with --storage")
    return Board.open(_opened(check_url(url), make=False), study or known.get("study"), known.get("data"))


def _opened(url: str, grace: int = GRACE, *, make: bool = True) -> Store:
    return Store(url, grace, say=lambda message: errors.print(f"varsmooth: {message}"), make=make)


def _started_with(note: dict[str, Any]) -> str:
    return f"--storage {note['storage']}" if note["storage"] else "a database of its own"


def _in_folder(out: Path) -> Store:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made: {error.strerror}") from None
    return _opened(file_url(out))


def _entries(out: Path) -> list[Path]:
    try:
        return list(out.iterdir())
    except OSError as error:
        raise InputError(f"--out {out}: cannot be used as a folder: {error.strerror}") from None


def _note(out: Path) -> dict[str, Any] | None:
    changed = "it was written by varsmooth sweep and must not be changed"
    try:
        note = json.loads((out / NOTE).read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError):
        raise InputError(f"{out / NOTE}: not valid JSON; {changed}") from None
    kinds = {"study": str, "storage": str | None, "data": dict | None}
    if not isinstance(note, dict) or not all(isinstance(note.get(key), kind) for key, kind in kinds.items()):
        raise InputError(f"{out / NOTE}: not what a sweep says of itself; {changed}")
    return note
