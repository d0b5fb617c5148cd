"""Corpus counts that the proposals are made of: words, and distinct neighbours to the right and to the left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.text.bigrams import bigram_set, chosen_out_of_core
from varsmooth.text.progress import progress_bar

PIECE = 1 << 22
"""Tokens looked at together: bounds the memory that sorting bigrams takes."""
SHOWN_ABOVE = 8 * PIECE
"""Tokens whose counting is worth a progress bar."""


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
    def from_ids(
        cls, ids: Tensor | NDArray[np.integer] | Sequence[int], vocab_size: int, *, out_of_core: bool | None = None
    ) -> Counts:
        """Count one stream of word ids.

        ``out_of_core`` says whether distinct bigrams are kept on disk (extra ``data``) instead of in memory; None decides by
        how many there can be. The counts are the same.
        """
        ids = _as_stream(ids)
        if out_of_core is None:
            out_of_core = chosen_out_of_core(math.prod(ids.shape), vocab_size)
        return cls.from_batches([ids], vocab_size, out_of_core=out_of_core)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Tensor | NDArray[np.integer] | Sequence[int]],
        vocab_size: int,
        *,
        contiguous: bool = False,
        out_of_core: bool = False,
    ) -> Counts:
        """Count many streams, one after the other, in memory that grows with the distinct bigrams alone, or not at all
        where they are kept on disk (``out_of_core``).

        Each item is a stream of its own, so no bigram reaches from one into the next; ``contiguous=True`` says that the items
        are pieces of one stream.
        """
        if vocab_size < 1:
            raise InputError(f"vocab_size must be at least 1, got {vocab_size}")
        unigram = np.zeros(vocab_size, dtype=np.int64)
        last: NDArray[np.int64] | None = None
        with bigram_set(vocab_size, out_of_core=out_of_core) as bigrams:
            for batch in batches:
                for piece in _pieces(_as_stream(batch), vocab_size):
                    unigram += np.bincount(piece, minlength=vocab_size)
                    bigrams.add(piece if last is None else np.concatenate([last, piece]))
                    last = piece[-1:]
                if not contiguous:
                    last = None
            after, before = bigrams.neighbours()
        return cls(torch.from_numpy(unigram), torch.from_numpy(after), torch.from_numpy(before))


def _as_stream(ids: Tensor | NDArray[np.integer] | Sequence[int]) -> NDArray[np.integer]:
    try:
        stream = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        found = f"an array of shape {tuple(stream.shape)}" if stream.ndim else f"a {type(ids).__name__}"
    except ValueError:
        stream, found = np.zeros((0, 0), np.int64), "rows of different lengths"
    if stream.ndim != 1:
        raise InputError(
            f"ids must be 1-D, got {found}; of many texts give Counts.from_batches one after the other, without padding: "
            "(row[mask.bool()] for row, mask in zip(input_ids, attention_mask))"
        )
    if stream.size and not np.issubdtype(stream.dtype, np.integer):
        raise InputError(f"ids must be integers, got {stream.dtype}")
    return stream


def _pieces(stream: NDArray[np.integer], vocab_size: int) -> Iterator[NDArray[np.int64]]:
    """Yield a stream in pieces that fit into memory, checked on the way, so that ids on disk are read once."""
    with progress_bar("counting", stream.size) if stream.size > SHOWN_ABOVE else nullcontext(lambda _: None) as advance:
        for start in range(0, stream.size, PIECE):
            piece = stream[start : start + PIECE].astype(np.int64)
            low, high = int(piece.min()), int(piece.max())
            if low < 0 or high >= vocab_size:
                raise InputError(f"ids must be in [0, vocab_size = {vocab_size}), got {low if low < 0 else high}")
            yield piece
            advance(piece.size)
