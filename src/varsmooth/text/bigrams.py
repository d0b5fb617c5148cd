"""The set of distinct bigrams of a text: in memory, or in a DuckDB file where it would not fit (extra ``data``)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from varsmooth.errors import InputError
from varsmooth.text.cache import cache_folder
from varsmooth.text.locks import try_lock
from varsmooth.text.progress import progress_bar

Codes = NDArray[np.int64]
"""Bigrams as numbers: the first word times the vocabulary size plus the second."""

PIECE = 1 << 22
"""Distinct codes looked at together: bounds the memory that finding and fetching them takes."""
BYTES_PER_BIGRAM = 30
"""What a distinct bigram takes in memory at the worst moment, when sorted runs are merged (measured: benchmarks/counts.py)."""
IN_MEMORY = 1 << 30
"""Bytes of bigrams that are held in memory although DuckDB is there."""
DATABASE_MEMORY = 256 << 20
SCRATCH = "bigrams-"
LOCK = "lock"
SAMPLED = 1 << 10
"""Of this many sorted codes one is remembered, to cut the codes into equal ranges."""


class BigramSet(Protocol):
    """Takes a text piece by piece, and says how many distinct words follow and precede each word."""

    def add(self, piece: Codes) -> None: ...

    def neighbours(self) -> tuple[Codes, Codes]: ...


def chosen_out_of_core(tokens: int, vocab_size: int) -> bool:
    """Tell whether the bigrams of this many tokens belong on disk: no more than ``tokens`` or V x V of them can be distinct."""
    needed = BYTES_PER_BIGRAM * min(tokens, vocab_size**2)
    if needed <= IN_MEMORY:
        return False
    if importlib.util.find_spec("duckdb") is not None:
        return True
    if needed > _machine_memory() // 2:
        raise InputError(
            f"the distinct bigrams of {tokens:,} tokens may take {needed / 1e9:.0f} GB of memory; "
            "to count them on disk: pip install 'varsmooth[data]'"
        )
    return False


@contextmanager
def bigram_set(vocab_size: int, *, out_of_core: bool) -> Iterator[BigramSet]:
    """Give an empty set; what it has on disk is gone afterwards, whatever happens."""
    if not out_of_core:
        yield _InMemory(vocab_size)
        return
    duckdb = _duckdb()
    with _scratch() as folder:
        try:
            connection = duckdb.connect(str(folder / "bigrams.duckdb"))
            try:
                yield _OnDisk(vocab_size, connection, folder)
            finally:
                connection.close()
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"bigrams cannot be counted on disk in {folder.parent} ({reason}); "
                "set VARSMOOTH_CACHE to a folder with more room"
            ) from None


class _InMemory:
    """Sorted runs; a run is merged with those no larger than itself, so each code moves rarely."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.runs: list[Codes] = []

    def add(self, piece: Codes) -> None:
        run = distinct(_codes(piece, self.vocab_size))
        while self.runs and self.runs[-1].size <= 2 * run.size:
            run = distinct(np.concatenate([self.runs.pop(), run]))
        self.runs.append(run)

    def neighbours(self) -> tuple[Codes, Codes]:
        codes = distinct(np.concatenate(self.runs)) if self.runs else np.empty(0, dtype=np.int64)
        self.runs = []
        found = _Neighbours(self.vocab_size)
        for start in range(0, codes.size, PIECE):
            found.add(codes[start : start + PIECE])
        return found.after, found.before


class _OnDisk:
    """A table of codes, each piece sorted: ranges of codes are read one by one, and DuckDB skips the blocks outside a range."""

    def __init__(self, vocab_size: int, connection: Any, folder: Path) -> None:
        self.vocab_size = vocab_size
        self.connection = connection
        self.samples: list[Codes] = []
        connection.execute(f"SET memory_limit = '{DATABASE_MEMORY >> 20}MiB'")
        connection.execute("SET temp_directory = ?", [str(folder / "spilled")])
        connection.execute("SET enable_progress_bar = false")
        connection.execute("CREATE TABLE bigrams (code BIGINT)")

    def add(self, piece: Codes) -> None:
        run = distinct(_codes(piece, self.vocab_size))
        if run.size == 0:
            return
        self.connection.register("run", {"code": run})
        self.connection.execute("INSERT INTO bigrams SELECT code FROM run")
        self.connection.unregister("run")
        self.samples.append(run[::SAMPLED].copy())

    def neighbours(self) -> tuple[Codes, Codes]:
        found = _Neighbours(self.vocab_size)
        bounds = self._bounds()
        with progress_bar("counting distinct bigrams", len(bounds) - 1) as advance:
            for low, high in pairwise(bounds):
                query = "SELECT DISTINCT code FROM bigrams WHERE code >= ? AND code < ?"
                found.add(np.asarray(self.connection.execute(query, [low, high]).fetchnumpy()["code"]))
                advance(1)
        return found.after, found.before

    def _bounds(self) -> list[int]:
        """Cut all codes into ranges of about a piece each."""
        samples = np.sort(np.concatenate([*self.samples, np.empty(0, dtype=np.int64)]))
        inner = samples[:: max(1, PIECE // SAMPLED)][1:]
        return sorted({0, *inner.tolist(), self.vocab_size**2})


class _Neighbours:
    """Counts over distinct codes: of each word as the first of a bigram, and as the second."""

    def __init__(self, vocab_size: int) -> None:
        self.after = np.zeros(vocab_size, dtype=np.int64)
        self.before = np.zeros(vocab_size, dtype=np.int64)

    def add(self, codes: Codes) -> None:
        left, right = np.divmod(codes, self.after.size)
        self.after += np.bincount(left, minlength=self.after.size)
        self.before += np.bincount(right, minlength=self.before.size)


def _codes(piece: Codes, vocab_size: int) -> Codes:
    codes = piece[:-1] * vocab_size
    codes += piece[1:]
    return codes


def distinct(codes: Codes) -> Codes:
    """Sort in place and drop repeats; np.unique would take a second copy."""
    codes.sort()
    if codes.size == 0:
        return codes
    first = np.empty(codes.size, dtype=bool)
    first[0] = True
    np.not_equal(codes[1:], codes[:-1], out=first[1:])
    return codes[first]


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError:
        raise InputError("counting bigrams on disk needs DuckDB: pip install 'varsmooth[data]'") from None
    return duckdb


@contextmanager
def _scratch() -> Iterator[Path]:
    """Give a folder of our own in the cache, deleted afterwards: the system's temporary folder may lie in memory."""
    parent = cache_folder() or Path(tempfile.gettempdir())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(parent)
        made = Path(tempfile.mkdtemp(prefix=f".{SCRATCH}", dir=parent))
    except OSError as error:
        raise InputError(
            f"{parent}: no folder can be made to count bigrams in ({error.strerror or error}); set VARSMOOTH_CACHE to one"
        ) from None
    lock = try_lock(made / LOCK, create=True)
    folder = made.rename(made.with_name(made.name[1:]))  # under its name it is locked from the first
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes left: what nobody has locked."""
    for left in parent.glob(f"{SCRATCH}*"):
        lock = try_lock(left / LOCK, create=False)
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
