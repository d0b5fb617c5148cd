"""Where things that can be made again are kept, and reading and writing them so that damage only costs time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from varsmooth.files import write_atomically


def cache_folder() -> Path | None:
    """Return ``$VARSMOOTH_CACHE``, else ``$XDG_CACHE_HOME/varsmooth``, else ``~/.cache/varsmooth``; None without a home."""
    if own := os.environ.get("VARSMOOTH_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "varsmooth"
    try:
        return Path.home() / ".cache" / "varsmooth"
    except RuntimeError:
        return None


def load_texts(name: str) -> dict[str, str] | None:
    """Return the named texts from the cache, or None when they are not there or not what was stored."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        stored = json.loads((folder / name).read_bytes())
        texts: dict[str, str] = stored["texts"]
        return texts if stored["sha256"] == _digest(texts) else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def store_texts(name: str, texts: dict[str, str]) -> None:
    """Keep the texts; a cache folder that cannot be written means doing without."""
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            write_atomically(folder / name, json.dumps({"sha256": _digest(texts), "texts": texts}).encode())


def _digest(texts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
