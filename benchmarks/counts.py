"""Counting a large corpus: seconds and memory, as JSON. Target: 100 million tokens, 50,000 types, 60 s and 4 GB on 2 cores."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator

import cyclopts
import numpy as np
import torch
from numpy.typing import NDArray

from varsmooth import Counts
from varsmooth.train.environment import environment

PIECE = 10_000_000


class ZipfianStream:
    """Pieces of one stream of independent Zipfian words; keeps its own time, so that it can be taken off."""

    def __init__(self, tokens: int, types: int, seed: int) -> None:
        self.tokens = tokens
        self.seconds = 0.0
        self._cumulative = np.cumsum(1 / np.arange(1, types + 1))
        self._generator = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        for start in range(0, self.tokens, PIECE):
            begin = time.perf_counter()
            piece = self._piece(min(PIECE, self.tokens - start))
            self.seconds += time.perf_counter() - begin
            yield piece

    def _piece(self, size: int) -> NDArray[np.int32]:
        piece = np.empty(size, dtype=np.int32)
        for start in range(0, size, 1_000_000):  # so that making the words needs little memory of its own
            uniform = self._generator.random(min(1_000_000, size - start)) * self._cumulative[-1]
            piece[start : start + uniform.size] = np.searchsorted(self._cumulative, uniform, side="right")
        return piece


def peak_bytes() -> int:
    """Return the largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def main(*, tokens: int = 100_000_000, types: int = 50_000, seed: int = 0) -> None:
    """Count a made-up corpus and print what it took."""
    before = peak_bytes()
    stream = ZipfianStream(tokens, types, seed)
    begin = time.perf_counter()
    counts = Counts.from_batches(stream, types, contiguous=True)
    elapsed = time.perf_counter() - begin
    assert int(counts.unigram.sum()) == tokens
    result = {
        "benchmark": "counts",
        "tokens": tokens,
        "types": types,
        "seed": seed,
        "distinct_bigrams": int(counts.distinct_after.sum()),
        "seconds": round(elapsed - stream.seconds, 2),
        "seconds_making_words": round(stream.seconds, 2),
        "peak_bytes": peak_bytes(),
        "peak_bytes_before": before,
        **environment(torch.device("cpu")),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    cyclopts.run(main)
