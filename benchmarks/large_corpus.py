"""A large text end to end to counts, and many ids to counts on disk: seconds, disk and memory, as JSON.

Target: a text of 1 GB on 2 cores with a peak below 2 GB.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cyclopts
import numpy as np
import torch
from numpy.typing import NDArray

from varsmooth import Counts, open_corpus
from varsmooth.text.bigrams import DATABASE_MEMORY
from varsmooth.train.environment import environment

app = cyclopts.App(help=__doc__)
PIECE = 1_000_000
LINE = 20
"""Words of a line on average."""
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]


class Zipf:
    """Pieces of one stream of independent Zipfian numbers below ``types``."""

    def __init__(self, types: int, seed: int) -> None:
        self._cumulative = np.cumsum(1 / np.arange(1, types + 1))
        self._generator = np.random.default_rng(seed)

    def pieces(self, tokens: int) -> Iterator[NDArray[np.int32]]:
        for start in range(0, tokens, PIECE):
            uniform = self._generator.random(min(PIECE, tokens - start)) * self._cumulative[-1]
            yield np.searchsorted(self._cumulative, uniform, side="right").astype(np.int32)


def word(rank: int) -> str:
    """Return a word of syllables, shorter for frequent words."""
    letters = ""
    rank += 1
    while rank:
        rank, syllable = divmod(rank - 1, len(SYLLABLES))
        letters = SYLLABLES[syllable] + letters
    return letters


def write_text(path: Path, size: int, types: int, seed: int) -> None:
    """Write lines of Zipfian words until the file has ``size`` bytes."""
    words = [word(rank) for rank in range(types)]
    written = 0
    with path.open("w", encoding="ascii") as file:
        for piece in Zipf(types, seed).pieces(sys.maxsize):
            ends = np.random.default_rng([seed, written]).random(len(piece)) < 1 / LINE
            spaces = ["\n" if end else " " for end in ends.tolist()]
            text = "".join([words[rank] + space for rank, space in zip(piece.tolist(), spaces, strict=True)])
            written += file.write(text[: size - written])
            if written >= size:
                return


def mark(stage: str, **figures: Any) -> None:
    """Tell the measuring process that a stage has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps({"stage": stage, "time": time.monotonic(), "cpu": cpu, **figures}), flush=True)


def checksum(counts: Counts) -> str:
    tensors = (counts.unigram, counts.distinct_after, counts.distinct_before)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


@app.command(show=False)
def text_to_counts(folder: Path) -> None:
    """What is measured on the text, in a process of its own."""
    mark("imports")
    corpus = open_corpus(folder, min_count=2)
    mark("encoding", tokens=corpus.train.numel(), words=len(corpus.vocab))
    counts = Counts.from_ids(corpus.train, len(corpus.vocab))
    mark("counts", distinct_bigrams=int(counts.distinct_after.sum()))
    corpus = open_corpus(folder, min_count=2)
    mark("opening again")


@app.command(show=False)
def ids_to_counts(tokens: int, types: int, seed: int, out_of_core: bool) -> None:
    """What is measured on ids, in a process of its own; making them is timed apart."""
    making = {"time": 0.0, "cpu": 0.0}

    def timed() -> Iterator[NDArray[np.int32]]:
        pieces = Zipf(types, seed).pieces(tokens)
        while True:
            begin, begin_cpu = time.monotonic(), time.process_time()
            group = [piece for _, piece in zip(range(8), pieces, strict=False)]
            making["time"] += time.monotonic() - begin
            making["cpu"] += time.process_time() - begin_cpu
            if not group:
                return
            yield np.concatenate(group)

    mark("imports")
    counts = Counts.from_batches(timed(), types, contiguous=True, out_of_core=out_of_core)
    mark("counts", distinct_bigrams=int(counts.distinct_after.sum()), checksum=checksum(counts), making=making)


@dataclass(frozen=True)
class Sample:
    """Bytes at one moment: resident in the process and all below it, the part of that which no file backs, and on disk."""

    time: float
    resident: int
    anonymous: int
    disk: int


class Sampler(threading.Thread):
    """Looks at a process, all below it, and a folder, twenty times a second."""

    def __init__(self, process: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self.process, self.folder = process, folder
        self.samples: list[Sample] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            figures = [memory(process) for process in tree(self.process)]
            resident, anonymous = (sum(figure[place] for figure in figures) for place in (0, 1))
            self.samples.append(Sample(time.monotonic(), resident, anonymous, disk_use(self.folder)))

    def peaks(self, begin: float, end: float) -> dict[str, int]:
        inside = [sample for sample in self.samples if begin <= sample.time <= end]
        names = ("resident", "anonymous", "disk")
        return {f"peak_{name}_bytes": max((getattr(sample, name) for sample in inside), default=0) for name in names}


def tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def memory(process: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {
        line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss") or line[:6] == "VmRSS:"
    }
    return sizes.get("VmRSS", 0), sizes.get("RssAnon", 0)


def disk_use(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                total += 512 * os.stat(os.path.join(root, file)).st_blocks  # noqa: PTH116, PTH118
            except OSError:
                continue
    return total


def measured(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    """Run a command of this file, and return its stages with their seconds and peaks."""
    command = [sys.executable, __file__, *map(str, arguments)]
    environ = {**os.environ, "VARSMOOTH_CACHE": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        sampler = Sampler(child.pid, folder)
        sampler.start()
        marks = [json.loads(line) for line in child.stdout]
        sampler.done.set()
        sampler.join()
    assert child.returncode == 0, f"{arguments[0]} ended with status {child.returncode}"
    stages = []
    for before, now in pairwise(marks):
        figures = {name: value for name, value in now.items() if name not in ("stage", "time", "cpu", "making")}
        seconds, cpu = (now[clock] - before[clock] - now.get("making", {}).get(clock, 0.0) for clock in ("time", "cpu"))
        stages.append(
            {
                "stage": now["stage"],
                "seconds": round(seconds, 2),
                "cpu_seconds": round(cpu, 2),
                **figures,
                **sampler.peaks(before["time"], now["time"]),
            }
        )
    return stages


@contextmanager
def room(folder: Path | None, needed: int) -> Iterator[Path]:
    """Give a temporary folder with enough room, deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="varsmooth-large-corpus-", dir=folder) as name:
        free = shutil.disk_usage(name).free
        assert free > needed, f"{name} has {free / 1e9:.1f} GB free where {needed / 1e9:.1f} GB are needed; say --folder"
        yield Path(name)


@app.default
def main(
    *,
    megabytes: int = 1000,
    tokens: int = 100_000_000,
    types: int = 1_000_000,
    id_types: int = 50_000,
    seed: int = 0,
    folder: Path | None = None,
) -> None:
    """Make a text and ids, measure, print the record and delete everything.

    The text has ``megabytes`` and words of ``types`` kinds; the ids are ``tokens``, then a quarter of that, of ``id_types``.
    """
    load = os.getloadavg()[0]
    with room(folder, 4_000_000 * megabytes + 40 * tokens) as scratch:
        text = scratch / "text"
        text.mkdir()
        for split, share in (("train", 1000), ("valid", 2), ("test", 2)):
            write_text(text / f"{split}.txt", 1000 * megabytes * share, types, seed)
        stages = measured(scratch / "cache", "text-to-counts", text)
        print(json.dumps(stages), file=sys.stderr)
        shutil.rmtree(scratch / "cache")
        shutil.rmtree(text)
        (quarter,) = measured(scratch / "cache", "ids-to-counts", tokens // 4, id_types, seed, "--out-of-core")
        (on_disk,) = measured(scratch / "cache", "ids-to-counts", tokens, id_types, seed, "--out-of-core")
        (in_memory,) = measured(scratch / "cache", "ids-to-counts", tokens, id_types, seed, "--no-out-of-core")
    billion = 1_000_000_000
    result = {
        "benchmark": "large_corpus",
        "config": {"megabytes": megabytes, "tokens": tokens, "types": types, "id_types": id_types, "min_count": 2},
        "seed": seed,
        "text": {
            "stages": stages,
            "seconds_to_counts": round(sum(stage["seconds"] for stage in stages[:2]), 2),
            "cpu_seconds_to_counts": round(sum(stage["cpu_seconds"] for stage in stages[:2]), 2),
            "peak_resident_bytes": max(stage["peak_resident_bytes"] for stage in stages),
        },
        "ids": {
            "quarter": quarter,
            "out_of_core": on_disk,
            "in_memory": in_memory,
            "equal": on_disk["checksum"] == in_memory["checksum"],
        },
        "billion_computed": {
            "formula": "seconds and disk grow with the tokens, as each piece of 2^22 tokens adds its own distinct bigrams: "
            "figure(N) = figure(n) + (figure(n) - figure(n/4)) / (0.75 n) * (N - n); memory is at most that of n/4 with all "
            "that DuckDB may hold",
            "seconds": round(_extended(on_disk["seconds"], quarter["seconds"], tokens, billion), 1),
            "cpu_seconds": round(_extended(on_disk["cpu_seconds"], quarter["cpu_seconds"], tokens, billion), 1),
            "disk_bytes": round(_extended(on_disk["peak_disk_bytes"], quarter["peak_disk_bytes"], tokens, billion)),
            "peak_resident_bytes": quarter["peak_resident_bytes"] + DATABASE_MEMORY,
        },
        "load_average": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
        **environment(torch.device("cpu")),
    }
    print(json.dumps(result, indent=2))


def _extended(whole: float, quarter: float, tokens: int, wanted: int) -> float:
    return whole + (whole - quarter) / (0.75 * tokens) * (wanted - tokens)


if __name__ == "__main__":
    app()
