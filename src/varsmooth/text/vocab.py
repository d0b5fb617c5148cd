"""The vocabulary: words and their row numbers, built from counts, saved as plain text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.text.reading import read_lines

EOS = "<eos>"
UNK = "<unk>"


@dataclass(frozen=True, repr=False)
class Vocab:
    """An immutable list of distinct words, ``<eos>`` among them; a word's id is its place in the list."""

    words: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        ids: dict[str, int] = {}
        for row, word in enumerate(self.words):
            _check_word(word)
            if ids.setdefault(word, row) != row:
                raise InputError(f"the vocabulary holds {word!r:.80} twice (words {ids[word] + 1} and {row + 1})")
        if EOS not in ids:
            raise InputError(f"the vocabulary has no {EOS}; add a line with it")
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __repr__(self) -> str:
        return f"Vocab({len(self)} words)"

    @property
    def eos_id(self) -> int:
        """The id of ``<eos>``."""
        return self._ids[EOS]

    @property
    def unk_id(self) -> int | None:
        """The id of ``<unk>``, or None when the vocabulary is closed."""
        return self._ids.get(UNK)

    def index(self, word: str) -> int | None:
        """Return the word's own id, or None when it is not in the vocabulary."""
        return self._ids.get(word)

    def rows(self, words: Iterable[str], unknown: int) -> list[int]:
        """Return the words' own ids, and ``unknown`` for one that is not in the vocabulary."""
        own = self._ids.get
        return [own(word, unknown) for word in words]

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of the tokens; an unknown word becomes ``<unk>``, or an error when there is none."""
        return [self._id_of(token) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of the ids."""
        return [self._word_of(row) for row in ids]

    def _id_of(self, word: str) -> int:
        row = self._ids.get(word, self.unk_id)
        if row is None:
            raise InputError(
                f"the word {word!r:.80} is not in the vocabulary, which has no {UNK}; leave the word out, or train with a "
                f"data.min_count with which rare words become {UNK}"
            )
        return row

    def _word_of(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise InputError(f"{int(row)} is not a word id; the vocabulary has ids 0 to {len(self) - 1}")
        return self.words[row]

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of the text that ``save`` writes."""
        return hashlib.sha256(self._text()).hexdigest()

    def save(self, path: Path) -> None:
        """Write one word a line."""
        write_atomically(path, self._text())

    @classmethod
    def load(cls, path: Path) -> Vocab:
        """Read what ``save`` wrote."""
        words: dict[str, int] = {}
        for number, tokens in enumerate(read_lines(path), start=1):
            if len(tokens) != 1:
                raise InputError(f"{path}, line {number}: {len(tokens)} words where one belongs; put one word on a line")
            first = words.setdefault(tokens[0], number)
            if first != number:
                raise InputError(f"{path}, line {number}: {tokens[0]!r} is there already, in line {first}; remove one")
        if EOS not in words:
            raise InputError(f"{path}: there is no {EOS} among the {len(words)} words; add a line with it")
        return cls(tuple(words))

    @classmethod
    def build(cls, word_counts: Mapping[str, int], min_count: int = 1, max_words: int | None = None) -> Vocab:
        """Sort words by count, then alphabetically; words dropped by either limit are counted as ``<unk>``.

        ``max_words`` is the number of rows, ``<eos>`` and ``<unk>`` included.
        """
        check_limits(min_count, max_words)
        counts = {word: count for word, count in word_counts.items() if count > 0 or word == EOS}
        counts.setdefault(EOS, 0)
        dropped = _dropped(counts, min_count, max_words)
        if dropped:
            counts[UNK] = counts.get(UNK, 0) + sum(counts.pop(word) for word in dropped)
        return cls(tuple(_most_frequent_first(counts, counts)))

    @classmethod
    def covering(
        cls, word_counts: Mapping[str, int], others: Iterable[str], min_count: int | None, max_words: int | None
    ) -> Vocab:
        """As ``build``; with ``min_count`` None, words that occur once become ``<unk>`` if there are ``others`` to be read.

        They are as rare as words that do not occur at all, so what follows from them is learnt.
        """
        vocab = cls.build(word_counts, 1 if min_count is None else min_count, max_words)
        if min_count is None and vocab.unk_id is None and any(vocab.index(word) is None for word in others):
            return cls.build(word_counts, 2, max_words)
        return vocab

    def _text(self) -> bytes:
        text = "".join(f"{word}\n" for word in self.words)
        # A reader takes a leading U+FEFF for a byte-order mark, so a word that starts with one gets a second.
        return ("\ufeff" * text.startswith("\ufeff") + text).encode()


def _dropped(counts: Mapping[str, int], min_count: int, max_words: int | None) -> list[str]:
    ordinary = _most_frequent_first(counts.keys() - {EOS, UNK}, counts)
    frequent = [word for word in ordinary if counts[word] >= min_count]
    needs_unk = UNK in counts or len(frequent) < len(ordinary)
    if max_words is not None and len(frequent) + 1 + needs_unk > max_words:
        frequent = frequent[: max_words - 2]
    return ordinary[len(frequent) :]


def _most_frequent_first(words: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    """Sort by count, then alphabetically: twice, as sorting is stable and needs no key of its own for a million words."""
    return sorted(sorted(words), key=counts.__getitem__, reverse=True)


def check_limits(min_count: int | None, max_words: int | None) -> None:
    """Refuse limits that no vocabulary can have."""
    if min_count is not None and min_count < 1:
        raise InputError(f"min_count must be at least 1, not {min_count}")
    if max_words is not None and max_words < 2:
        raise InputError(f"max_words must be at least 2 ({EOS} and {UNK}), not {max_words}")


def _check_word(word: str) -> None:
    if word.split() != [word] or "\0" in word or not _is_utf8(word):
        raise InputError(f"{word!r:.80} cannot be a word of the vocabulary: it is empty or holds white space or no text")


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
