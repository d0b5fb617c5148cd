"""Encoding a large text ahead of its use, and what of such texts is in the cache."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from varsmooth.errors import InputError
from varsmooth.text import splits
from varsmooth.text.bigrams import remove_leftovers
from varsmooth.text.cache import cache_folder
from varsmooth.text.chunks import default_workers
from varsmooth.text.encoding import Request
from varsmooth.text.locks import try_lock
from varsmooth.text.mapped import ABOUT, BUILDING, MappedText, entries_folder, open_mapped
from varsmooth.text.options import Options
from varsmooth.text.reading import size_of


@dataclass(frozen=True)
class Entry:
    """An encoded text of the cache; without ``sources`` it is what a killed process left, or damaged."""

    folder: Path
    bytes: int
    sources: Mapping[str, str]
    tokens: int


def prepare(
    folder: Path,
    *,
    min_count: int | None = None,
    max_words: int | None = None,
    max_tokens: int | None = None,
    workers: int | None = None,
) -> MappedText | None:
    """Encode the text of a folder into the cache; None where it is so small that it is read anew every time."""
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    paths = splits.paths_in(folder)
    if sum(map(size_of, paths.values())) <= splits.MAPPED_ABOVE:
        return None
    return open_mapped(Request(paths, Options(min_count, max_words, None, max_tokens)), workers=workers or default_workers())


def cached_entries() -> list[Entry]:
    """Return what encoded texts the cache holds."""
    if cache_folder() is None or not entries_folder().is_dir():
        return []
    return [_entry(folder) for folder in sorted(entries_folder().iterdir()) if folder.is_dir()]


def remove_entries() -> list[Entry]:
    """Delete the encoded texts and return them; what a process has mapped stays readable to it, and what one makes stays."""
    removed = []
    for entry in cached_entries():
        # The lock of an entry is also that of the folder in which it is made.
        lock = try_lock(entry.folder.with_name(entry.folder.name.partition(BUILDING)[0] + ".lock"), create=True)
        if lock is None:
            continue
        try:
            shutil.rmtree(entry.folder)
            removed.append(entry)
        except OSError as error:
            raise InputError(f"{entry.folder} cannot be deleted: {error.strerror or error}") from None
        finally:
            os.close(lock)
    if (cache := cache_folder()) is not None:
        remove_leftovers(cache)
    return removed


def _entry(folder: Path) -> Entry:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # gone already, where it is being made
            size += path.stat().st_size if path.is_file() else 0
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        sources = {split: str(source["path"]) for split, source in about["sources"].items()}
        return Entry(folder, size, sources, sum(int(ids["tokens"]) for ids in about["ids"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Entry(folder, size, {}, 0)
