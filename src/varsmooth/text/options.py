"""How a text becomes ids: what ``max_tokens`` keeps of it and which words have rows, however the text is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from varsmooth.errors import InputError
from varsmooth.text.vocab import EOS, Vocab


class Split(Protocol):
    """Lines of numbered words: a ``Stream`` in memory, or what is ``Numbered`` on disk."""

    @property
    def source(self) -> str: ...

    @property
    def tokens(self) -> int: ...

    def end_of_whole_lines(self, limit: int) -> int:
        """Return the end of the last line that fits into ``limit`` tokens, or 0."""

    def end_of_line_behind(self, tokens: int) -> int:
        """Return the end of the first line that ends behind ``tokens`` tokens or later, or that of the last line."""

    def first(self, tokens: int) -> Self:
        """Return the split cut after that many tokens, which end a line."""

    def count_words(self) -> dict[str, int]:
        """Return how often each word of the split occurs in it."""


AnySplit = TypeVar("AnySplit", bound=Split)


@dataclass(frozen=True)
class Options:
    """The options that every way to a ``Corpus`` has; it says what they mean."""

    min_count: int | None = None
    max_words: int | None = None
    vocab: Vocab | None = None
    max_tokens: int | None = None

    def shorten(self, splits: Mapping[str, AnySplit]) -> dict[str, AnySplit]:
        """Keep the first whole lines of train that fit into ``max_tokens``, and the same share of the other splits."""
        shorter, train = dict(splits), splits["train"]
        if self.max_tokens is not None and self.max_tokens < train.tokens:
            kept = train.end_of_whole_lines(self.max_tokens)
            if kept == 0:
                raise InputError(
                    f"max_tokens {self.max_tokens} leaves nothing to train on: "
                    f"the first line of {train.source} has {train.end_of_line_behind(1)} tokens"
                )
            shorter["train"] = train.first(kept)
            share = self.max_tokens / train.tokens
            for name in ("valid", "test"):
                split = splits[name]
                kept = max(split.end_of_whole_lines(int(share * split.tokens)), split.end_of_line_behind(2))
                shorter[name] = split.first(kept)
        for split in shorter.values():
            if split.tokens < 2:
                raise InputError(f"{split.source} holds a single token; a split needs at least two")
        return shorter

    def choose_vocab(self, splits: Mapping[str, Split]) -> tuple[Vocab, int]:
        """Return the vocabulary, and the smallest count of a word of train."""
        counts = splits["train"].count_words()
        rarest = min((count for word, count in counts.items() if word != EOS), default=1)
        if self.vocab is not None:
            return self.vocab, rarest
        others = (word for name in ("valid", "test") for word in splits[name].count_words())
        return Vocab.covering(counts, others, self.min_count, self.max_words), rarest
