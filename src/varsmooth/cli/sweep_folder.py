"""The folder of a sweep: which study it holds, and where that study's database is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.sweep import FILE, Board, Store, check_url, file_url, shown
from varsmooth.text.reading import exists

NOTE = "sweep.json"


def started_store(out: Path, storage: str | None, study: str, grace: int) -> Store:
    """Open the database of a sweep, and note in its folder which one it is; a folder serves one study."""
    if grace < 1:
        raise InputError(f"--grace must be at least 1 second, got {grace}")
    note, url = _note(out), check_url(storage) if storage else None
    if note and note["study"] != study:
        raise InputError(f"{out} holds the study {note['study']!r}, not {study!r}; choose another --out")
    if note and url and note["storage"] != shown(url):
        raise InputError(f"{out} was started with --storage {note['storage']}, not {shown(url)}; choose another --out")
    if note and note["storage"] and not url:
        raise InputError(f"{out} was started with --storage {note['storage']}; give it again")
    if not note and exists(out) and any(entry.name != FILE for entry in out.iterdir()):
        raise InputError(f"{out} is not empty and holds no sweep; choose another --out")
    store = Store(url, grace) if url else _in_folder(out)
    if not note:
        write_atomically(out / NOTE, json.dumps({"study": study, "storage": url and shown(url)}).encode())
    return store


def opened_board(out: Path | None, storage: str | None, study: str | None) -> Board:
    """Open a study that has been started, from its folder or its URL."""
    note = _note(out) if out is not None else None
    if storage is None and note is None:
        raise InputError(f"{out} is not the folder of a sweep: {NOTE} is missing")
    url = storage or (note or {}).get("storage")
    if url:
        return Board.open(Store(check_url(url)), study or (note or {}).get("study"))
    assert out is not None
    return Board.open(Store(file_url(out)), study)


def _in_folder(out: Path) -> Store:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made: {error.strerror}") from None
    return Store(file_url(out))


def _note(out: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((out / NOTE).read_bytes()))
    except OSError:
        return None
    except ValueError:
        raise InputError(f"{out / NOTE}: not valid JSON; it was written by varsmooth sweep and must not be changed") from None
