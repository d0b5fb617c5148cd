"""Encoding a large text ahead of its use, and what of such texts is in the cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from varsmooth.errors import InputError
from varsmooth.text import splits
from varsmooth.text.cache import cache_folder
from varsmooth.text.chunks import default_workers
from varsmooth.text.encoding import Request
from varsmooth.text.mapped import ABOUT, MappedText, entries_folder, open_mapped
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
    min_count: int = 1,
    max_words: int | None = None,
    max_tokens: int | None = None,
    workers: int | None = None,
) -> MappedText | None:
    """Encode the text of a folder into the cache; None where it is so small that it is read anew every time."""
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    splits.check_folder(folder)
    paths = {split: folder / f"{split}.txt" for split in splits.SPLITS}
    if sum(map(size_of, paths.values())) <= splits.MAPPED_ABOVE:
        return None
    return open_mapped(Request(paths, min_count, max_words, None, max_tokens), workers=workers or default_workers())


def cached_entries() -> list[Entry]:
    """Return what encoded texts the cache holds."""
    if cache_folder() is None or not entries_folder().is_dir():
        return []
    return [_entry(folder) for folder in sorted(entries_folder().iterdir()) if folder.is_dir()]


def remove_entries() -> int:
    """Delete all encoded texts and return how many bytes that freed; what a process has mapped stays readable to it."""
    freed = 0
    for entry in cached_entries():
        try:
            shutil.rmtree(entry.folder)
        except OSError as error:
            raise InputError(f"{entry.folder} cannot be deleted: {error.strerror or error}") from None
        freed += entry.bytes
    return freed


def _entry(folder: Path) -> Entry:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        sources = {split: str(source["path"]) for split, source in about["sources"].items()}
        return Entry(folder, size, sources, sum(int(ids["tokens"]) for ids in about["ids"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Entry(folder, size, {}, 0)
