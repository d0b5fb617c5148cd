"""A large text file cut into chunks whose words are numbered by several processes.

Each chunk has its own numbering. A worker leaves three files: ``.ids`` (int32 word numbers, ``<eos>`` after each line),
``.lines`` (int64 places just after each line) and ``.words`` (the words in the order of their numbers, one a line).
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from varsmooth.errors import InputError
from varsmooth.text import chunk_worker
from varsmooth.text.reading import decode_lines, reading

CHUNK = 16 << 20
"""Bytes in a chunk: what a worker holds is about ten times as much."""
LOOK_AHEAD = 1 << 16
BLANK = re.compile(rb"[ \t\n\r\v\f]")


@dataclass(frozen=True)
class Chunk:
    """Some bytes of a file of ``size`` bytes; it ends behind a line, or behind a blank where a line is very long."""

    path: Path
    start: int
    end: int
    size: int


@dataclass(frozen=True)
class Part:
    """A numbered chunk; ``stem`` is where its three files are, without their suffixes."""

    chunk: Chunk
    stem: Path
    tokens: int
    lines: int

    def ids(self) -> npt.NDArray[np.int32]:
        return np.fromfile(self.stem.with_suffix(".ids"), dtype=np.int32)

    def line_ends(self) -> npt.NDArray[np.int64]:
        return np.fromfile(self.stem.with_suffix(".lines"), dtype=np.int64)

    def words(self) -> list[str]:
        return self.stem.with_suffix(".words").read_bytes().decode().split("\n")

    def remove(self) -> None:
        for suffix in (".ids", ".lines", ".words"):
            self.stem.with_suffix(suffix).unlink(missing_ok=True)


def cut(path: Path, chunk: int | None = None) -> list[Chunk]:
    """Cut a file into chunks of about ``chunk`` bytes; no word and no character is ever cut through."""
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        places = [0]
        while places[-1] < size:
            places.append(_boundary(file, places[-1] + (chunk or CHUNK), size))
    return [Chunk(path, start, end, size) for start, end in pairwise(places)]


def number_chunks(chunks: Sequence[Chunk], folder: Path, workers: int, advance: Callable[[int], None]) -> list[Part]:
    """Number the chunks into files of ``folder``; ``advance`` is told of the bytes that are done, in their order."""
    parts = []
    pool = ThreadPoolExecutor(workers)
    try:
        stems = [folder / str(place) for place in range(len(chunks))]
        replies = [pool.submit(_run_worker, chunk, stem) for chunk, stem in zip(chunks, stems, strict=True)]
        for chunk, stem, reply in zip(chunks, stems, replies, strict=True):
            parts.append(_part(chunk, stem, reply.result()))
            advance(chunk.end - chunk.start)
    finally:
        pool.shutdown(cancel_futures=True)  # and wait for those at work, which write into the folder
    return parts


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _boundary(file: BinaryIO, place: int, size: int) -> int:
    file.seek(place)
    while block := file.read(LOOK_AHEAD):
        found = block.find(b"\n")
        if found < 0 and (blank := BLANK.search(block)):
            found = blank.start()
        if found >= 0:
            return place + found + 1
        place += len(block)
    return size


def _run_worker(chunk: Chunk, stem: Path) -> dict[str, int]:
    """Start the worker by its path, apart from the package: -I and -S leave out all that it does not need."""
    program = [sys.executable, "-I", "-S", chunk_worker.__file__]
    numbers = [str(chunk.start), str(chunk.end), str(chunk.size)]
    done = subprocess.run([*program, str(chunk.path), *numbers, str(stem)], capture_output=True, check=False)
    if done.returncode:
        reason = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise InputError(f"{chunk.path}: a process that encoded it ended with {reason}; is there memory for one per core?")
    reply: dict[str, int] = json.loads(done.stdout)
    return reply


def _part(chunk: Chunk, stem: Path, reply: dict[str, int]) -> Part:
    if "unread" in reply:
        with reading(chunk.path):
            raise OSError(reply["unread"], os.strerror(reply["unread"]))
    if "short" in reply:
        raise changed(chunk.path)
    if "bad" in reply:
        _complain(chunk)
    if "unwritten" in reply:
        raise OSError(reply["unwritten"], os.strerror(reply["unwritten"]))
    return Part(chunk, stem, reply["tokens"], reply["lines"])


def changed(path: Path) -> InputError:
    return InputError(f"{path} changed while it was read; leave it alone and try again")


def _complain(chunk: Chunk) -> None:
    """Say what is wrong with a chunk in the words that reading it line by line has for it."""
    with reading(chunk.path), chunk.path.open("rb") as file:
        before = sum(file.read(min(CHUNK, chunk.start - place)).count(b"\n") for place in range(0, chunk.start, CHUNK))
        file.seek(chunk.start)
        raw = file.read(chunk.end - chunk.start)
    for _ in decode_lines(io.BytesIO(raw), str(chunk.path), offset=chunk.start, first=before + 1):
        pass
    raise changed(chunk.path)
