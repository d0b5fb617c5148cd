"""Three text files into ids on disk, with memory for the vocabulary and some chunks: what ``Corpus`` does, out of core.

Every word of train is held with its count until the vocabulary is built, at about 300 bytes a word; nothing else grows.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from varsmooth.errors import InputError
from varsmooth.files import sha256_of
from varsmooth.text.chunks import Part, changed, cut, number_chunks
from varsmooth.text.options import Options
from varsmooth.text.progress import Advance, progress_bar
from varsmooth.text.reading import no_text, reading
from varsmooth.text.streams import Lexicon, UnknownWordError
from varsmooth.text.vocab import Vocab, check_limits

SETTLED = 2_000_000_000
"""Nanoseconds after which a file's times tell every later change; two changes within one tick of the clock look alike."""

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Request:
    """Which files are to be encoded, by split, and how."""

    sources: Mapping[str, Path]
    options: Options


@dataclass(frozen=True)
class Encoded:
    """What was written: of each split the SHA-256 of its text and of its ids, and its tokens."""

    vocab: Vocab
    checksums: dict[str, str]
    signatures: dict[str, list[int] | None]
    """of the texts, from before they were read"""
    ids_checksums: dict[str, str]
    tokens: dict[str, int]


@dataclass(frozen=True)
class Numbered:
    """A ``Split`` on disk: its numbered parts, of which the first ``tokens`` are used."""

    source: str
    parts: Sequence[Part]
    tokens: int

    def pieces(self) -> Iterator[tuple[Part, Ids]]:
        """Yield each part that is used with the word numbers that are."""
        left = self.tokens
        for part in self.parts:
            if left <= 0:
                return
            yield part, part.ids()[:left]
            left -= part.tokens

    def end_of_whole_lines(self, limit: int) -> int:
        found, before = 0, 0
        for part in self.parts:
            if before > limit:
                break
            ends = part.line_ends()
            fitting = int(np.searchsorted(ends, limit - before, side="right"))
            found = before + int(ends[fitting - 1]) if fitting else found
            before += part.tokens
        return found

    def end_of_line_behind(self, tokens: int) -> int:
        before = 0
        for part in self.parts:
            ends = part.line_ends()
            place = int(np.searchsorted(ends, tokens - before))
            if place < len(ends):
                return before + int(ends[place])
            before += part.tokens
        return before

    def first(self, tokens: int) -> Numbered:
        return replace(self, tokens=tokens)

    def count_words(self) -> dict[str, int]:
        lexicon, totals = Lexicon(), np.zeros(0, dtype=np.int64)
        with progress_bar("counting words", self.tokens) as advance:
            for part, ids in self.pieces():
                words = part.words()
                numbers = np.fromiter(map(lexicon.__getitem__, words), dtype=np.int64, count=len(words))
                totals = np.pad(totals, (0, len(lexicon) - len(totals)))
                totals[numbers] += np.bincount(ids, minlength=len(words))
                advance(len(ids))
        return {word: count for word, count in zip(lexicon, totals.tolist(), strict=True) if count}


def encode(request: Request, folder: Path, workers: int) -> Encoded:
    """Write ``train.i32``, ``valid.i32`` and ``test.i32``, raw little-endian ids, into ``folder``, which is ours alone."""
    options = request.options
    if options.vocab is None:
        check_limits(options.min_count, options.max_words)
    signatures = {split: settled_signature(path) for split, path in request.sources.items()}
    numbered, checksums = _number(request.sources, folder, workers)
    numbered = options.shorten(numbered)
    vocab, rarest = options.choose_vocab(numbered)
    ids_checksums = {}
    with progress_bar("encoding", sum(split.tokens for split in numbered.values())) as advance:
        for name, split in numbered.items():
            ids_checksums[name] = _write_ids(split, vocab, rarest, folder / f"{name}.i32", advance)
    tokens = {name: split.tokens for name, split in numbered.items()}
    return Encoded(vocab, checksums, signatures, ids_checksums, tokens)


def _number(sources: Mapping[str, Path], folder: Path, workers: int) -> tuple[dict[str, Numbered], dict[str, str]]:
    """Number the words of all files side by side; their checksums are taken meanwhile."""
    before = {split: signature(path) for split, path in sources.items()}
    chunks = {split: cut(path) for split, path in sources.items()}
    every = [chunk for of_split in chunks.values() for chunk in of_split]
    with (
        ThreadPoolExecutor(1) as hasher,
        progress_bar("reading", sum(chunk.end - chunk.start for chunk in every)) as advance,
    ):
        digests = {split: hasher.submit(_digest, path) for split, path in sources.items()}
        try:
            parts = iter(number_chunks(every, folder, workers, advance))
        except BaseException:
            hasher.shutdown(wait=False, cancel_futures=True)
            raise
    numbered = {}
    for split, path in sources.items():
        own = [next(parts) for _ in chunks[split]]
        if all(part.tokens == part.lines for part in own):  # blank lines alone
            raise InputError(no_text(str(path)))
        numbered[split] = Numbered(str(path), own, sum(part.tokens for part in own))
        if signature(path) != before[split]:
            raise changed(path)
    return numbered, {split: digest.result() for split, digest in digests.items()}


def signature(path: Path) -> list[int]:
    """Return what changes whenever a file does, unless its clock stands still."""
    with reading(path):
        found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def settled_signature(path: Path) -> list[int] | None:
    """Return a text's signature, or None when it was written so recently that another change might not show in it."""
    found = signature(path)
    return found if max(found[1], found[2]) < time.time_ns() - SETTLED else None


def _digest(path: Path) -> str:
    with reading(path):
        return sha256_of(path)


def _write_ids(split: Numbered, vocab: Vocab, rarest: int, path: Path, advance: Advance) -> str:
    """Write the split's ids, deleting its parts on the way, and return the SHA-256 of the file."""
    unknown = -1 if vocab.unk_id is None else vocab.unk_id
    digest = hashlib.sha256()
    lines_before = 0
    with path.open("wb") as file:
        for part, numbers in split.pieces():
            words = part.words()
            ids = np.array(vocab.rows(words, unknown), dtype="<i4")[numbers]
            if unknown < 0 and (lacking := ids < 0).any():
                place = int(lacking.argmax())
                line = lines_before + int(np.searchsorted(part.line_ends(), place, side="right")) + 1
                raise UnknownWordError(split.source, line, words[numbers[place]], rarest)
            raw = ids.tobytes()
            file.write(raw)
            digest.update(raw)
            lines_before += part.lines
            advance(len(ids))
            part.remove()
        file.flush()
        os.fsync(file.fileno())
    for part in split.parts:
        part.remove()
    return digest.hexdigest()
