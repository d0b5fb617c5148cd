"""Token streams: a text's words as numbers, with its line ends, before there is a vocabulary."""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from varsmooth.errors import InputError
from varsmooth.text.reading import decode_lines, no_text, read_lines
from varsmooth.text.vocab import EOS, UNK, Vocab

Ids = npt.NDArray[np.int64]


class Lexicon(dict[str, int]):
    """Words numbered in the order in which they were first asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


@dataclass(frozen=True, eq=False)
class Stream:
    """A ``Split`` in memory: word numbers of a lexicon with ``<eos>`` after each line, and the place just after each line."""

    source: str
    ids: Ids
    line_ends: Ids
    checksum: str
    lexicon: Lexicon

    @classmethod
    def from_file(cls, path: Path, lexicon: Lexicon) -> Stream:
        """Read a text file, adding its words to the lexicon."""
        digest = hashlib.sha256()
        ids, line_ends = _number(read_lines(path, digest), str(path), lexicon)
        return cls(str(path), ids, line_ends, digest.hexdigest(), lexicon)

    @classmethod
    def from_text(cls, text: str, source: str, lexicon: Lexicon) -> Stream:
        """Read a text in memory as if it were a file called ``source``."""
        raw = text.encode()
        ids, line_ends = _number(decode_lines(io.BytesIO(raw), source), source, lexicon)
        return cls(source, ids, line_ends, hashlib.sha256(raw).hexdigest(), lexicon)

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def end_of_whole_lines(self, limit: int) -> int:
        fitting = int(np.searchsorted(self.line_ends, limit, side="right"))
        return int(self.line_ends[fitting - 1]) if fitting else 0

    def end_of_line_behind(self, tokens: int) -> int:
        place = int(np.searchsorted(self.line_ends, tokens))
        return int(self.line_ends[min(place, len(self.line_ends) - 1)])

    def first(self, tokens: int) -> Stream:
        return replace(self, ids=self.ids[:tokens], line_ends=self.line_ends[self.line_ends <= tokens])

    def count_words(self) -> dict[str, int]:
        counts = np.bincount(self.ids, minlength=len(self.lexicon)).tolist()
        return {word: count for word, count in zip(self.lexicon, counts, strict=True) if count}


def _number(lines: Iterable[list[str]], source: str, lexicon: Lexicon) -> tuple[Ids, Ids]:
    ids, line_ends = array("q"), array("q")
    number, eos = lexicon.__getitem__, lexicon[EOS]
    for tokens in lines:
        ids.extend(map(number, tokens))
        ids.append(eos)
        line_ends.append(len(ids))
    if len(ids) == len(line_ends):  # blank lines alone
        raise InputError(no_text(source))
    return np.frombuffer(ids, dtype=np.int64), np.frombuffer(line_ends, dtype=np.int64)


class Encoder:
    """Turns lexicon numbers into vocabulary ids, unknown words into ``<unk>``."""

    def __init__(self, lexicon: Lexicon, vocab: Vocab, rarest: int) -> None:
        """``rarest`` is the smallest count of a training word: one more makes an ``<unk>``, and errors say so."""
        unknown = -1 if vocab.unk_id is None else vocab.unk_id
        rows = (vocab.index(word) for word in lexicon)
        self._table = np.array([unknown if row is None else row for row in rows], dtype=np.int64)
        self._lexicon = lexicon
        self._rarest = rarest

    def encode(self, stream: Stream) -> torch.Tensor:
        """Return the stream as a 1-D int64 tensor, or name the first unknown word when there is no ``<unk>``."""
        ids = self._table[stream.ids]
        unknown = ids < 0
        if unknown.any():
            raise self._complaint(stream, int(unknown.argmax()))
        return torch.from_numpy(ids)

    def _complaint(self, stream: Stream, place: int) -> UnknownWordError:
        word = list(self._lexicon)[stream.ids[place]]
        line = int(np.searchsorted(stream.line_ends, place, side="right")) + 1
        return UnknownWordError(stream.source, line, word, self._rarest)


class UnknownWordError(InputError):
    """A vocabulary without ``<unk>`` lacks a word; ``rarest`` is the smallest count of a training word."""

    def __init__(self, source: str, line: int, word: str, rarest: int) -> None:
        self.where, self.word = f"{source}, line {line}", word
        super().__init__(
            f"{self.where}: the word {word!r:.80} is not in the vocabulary, which has no {UNK}; "
            f"build the vocabulary with a min_count of {rarest + 1} (--set data.min_count={rarest + 1} when training) so that "
            f"rare words become {UNK}, or add the word to the training text"
        )
