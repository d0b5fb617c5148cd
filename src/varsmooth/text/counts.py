"""Corpus counts that the proposals are made of: words, and distinct neighbours to the right and to the left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varsmooth.errors import InputError

PIECE = 1 << 23
"""Tokens looked at together: bounds the memory that sorting bigrams takes."""


@dataclass(frozen=True)
class Counts:
    """How often each word occurs, and how many distinct words follow and precede it (int64 tensors of length V)."""

    unigram: Tensor
    distinct_after: Tensor
    distinct_before: Tensor

    @property
    def vocab_size(self) -> int:
        return self.unigram.numel()

    @classmethod
    def from_ids(cls, ids: Tensor | NDArray[np.integer], vocab_size: int) -> Counts:
        """Count one stream of word ids."""
        return cls.from_batches([ids], vocab_size)

    @classmethod
    def from_batches(
        cls, batches: Iterable[Tensor | NDArray[np.integer]], vocab_size: int, *, contiguous: bool = False
    ) -> Counts:
        """Count many streams, one after the other, in memory that grows with the distinct bigrams alone.

        Each item is a stream of its own, so no bigram reaches from one into the next; ``contiguous=True`` says that the items
        are pieces of one stream.
        """
        if vocab_size < 1:
            raise InputError(f"vocab_size must be at least 1, got {vocab_size}")
        unigram = np.zeros(vocab_size, dtype=np.int64)
        bigrams = _BigramSet(vocab_size)
        last: NDArray[np.int64] | None = None
        for batch in batches:
            stream = _as_stream(batch, vocab_size)
            for start in range(0, stream.size, PIECE):
                piece = stream[start : start + PIECE].astype(np.int64)
                unigram += np.bincount(piece, minlength=vocab_size)
                bigrams.add(piece if last is None else np.concatenate([last, piece]))
                last = piece[-1:]
            if not contiguous:
                last = None
        after, before = bigrams.neighbours()
        return cls(torch.from_numpy(unigram), torch.from_numpy(after), torch.from_numpy(before))


class _BigramSet:
    """A set of bigrams kept as sorted runs; a run is merged with those no larger than itself, so each code moves rarely."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.runs: list[NDArray[np.int64]] = []

    def add(self, piece: NDArray[np.int64]) -> None:
        run = _distinct(piece[:-1] * self.vocab_size + piece[1:])
        while self.runs and self.runs[-1].size <= 2 * run.size:
            run = _distinct(np.concatenate([self.runs.pop(), run]))
        self.runs.append(run)

    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        codes = _distinct(np.concatenate(self.runs)) if self.runs else np.empty(0, dtype=np.int64)
        self.runs = []
        after = np.zeros(self.vocab_size, dtype=np.int64)
        before = np.zeros(self.vocab_size, dtype=np.int64)
        for start in range(0, codes.size, PIECE):
            left, right = np.divmod(codes[start : start + PIECE], self.vocab_size)
            after += np.bincount(left, minlength=self.vocab_size)
            before += np.bincount(right, minlength=self.vocab_size)
        return after, before


def _distinct(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort in place and drop repeats; np.unique would take a second copy."""
    codes.sort()
    if codes.size == 0:
        return codes
    first = np.empty(codes.size, dtype=bool)
    first[0] = True
    np.not_equal(codes[1:], codes[:-1], out=first[1:])
    return codes[first]


def _as_stream(batch: Tensor | NDArray[np.integer], vocab_size: int) -> NDArray[np.integer]:
    stream = batch.detach().cpu().numpy() if isinstance(batch, Tensor) else np.asarray(batch)
    if stream.ndim != 1:
        raise InputError(f"ids must be 1-D, got shape {tuple(stream.shape)}")
    if stream.size == 0:
        return np.empty(0, dtype=np.int64)
    if not np.issubdtype(stream.dtype, np.integer):
        raise InputError(f"ids must be integers, got {stream.dtype}")
    low, high = int(stream.min()), int(stream.max())
    if low < 0 or high >= vocab_size:
        culprit = low if low < 0 else high
        raise InputError(f"ids must be in [0, vocab_size = {vocab_size}), got {culprit}")
    return stream
