"""What the runs of one process share, and what a configuration asks of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console

from varsmooth.config import Config, DataConfig
from varsmooth.text import Corpus, Vocab, open_corpus
from varsmooth.text.counts import Counts
from varsmooth.text.named import DESCRIPTIONS
from varsmooth.train.build import resolve_device
from varsmooth.train.display import Screen
from varsmooth.train.interruptions import Interruptions
from varsmooth.train.lane import Lane
from varsmooth.train.loop import Reason
from varsmooth.train.parallel import Ranks, joined
from varsmooth.train.trainer import Progress

SMALL = 64
"""Units up to which a model counts as small."""


@dataclass(frozen=True)
class Reporting:
    """Where a run's progress goes."""

    console: Console
    tensorboard: bool = False


class Corpora:
    """Opens and counts each corpus once, however many runs read it."""

    def __init__(self) -> None:
        self._opened: dict[tuple[DataConfig, str | None], Corpus] = {}
        self._counts: dict[str, Counts] = {}

    def of(self, config: Config, vocab: Vocab | None = None) -> Corpus:
        key = config.data, None if vocab is None else vocab.checksum
        if key not in self._opened:
            corpus = corpus_of(config, vocab)
            # A run that is resumed asks for the vocabulary that it was started with.
            self._opened[key] = self._opened[config.data, corpus.vocab.checksum] = corpus
        return self._opened[key]

    def counts_of(self, corpus: Corpus) -> Counts:
        """Count the words and neighbours of train: for a large text that takes longer than a short trial."""
        key = f"{corpus.checksums['train']} {corpus.vocab.checksum} {corpus.train.numel()}"
        if key not in self._counts:
            self._counts[key] = Counts.from_ids(corpus.train, len(corpus.vocab))
        return self._counts[key]


@dataclass
class RunControl:
    """One run in the hands of whoever conducts it among others."""

    title: str | None = None
    """what it is called where others are shown beside it"""
    stop: Reason | None = None
    """why it should save its state and end before its last step; a signal to the process ends it in any case"""
    progress: Progress | None = None
    """where it stands, once it is built"""


@dataclass(frozen=True)
class Session:
    """What the runs of one process share."""

    screen: Screen
    tensorboard: bool = False
    corpora: Corpora = field(default_factory=Corpora)
    ranks: Ranks = field(default_factory=Ranks)
    """the processes that train its run together; a fleet has none but this"""

    @property
    def interruptions(self) -> Interruptions:
        """The signals to this process."""
        return self.ranks.interruptions


@contextmanager
def opened_session(reporting: Reporting, device: torch.device) -> Iterator[Session]:
    """The session of a single run, which torchrun may have started in several processes: then only the first is heard."""
    with joined(device) as ranks:
        console = reporting.console if ranks.first else Console(quiet=True, force_terminal=False)
        with Screen(console) as screen:
            yield Session(screen, reporting.tensorboard and ranks.first, ranks=ranks)


def corpus_of(config: Config, vocab: Vocab | None = None) -> Corpus:
    """Open the corpus that a configuration names."""
    data = config.data
    return open_corpus(
        data.name,
        data_dir=Path(data.data_dir) if data.data_dir else None,
        min_count=data.min_count or None,
        max_words=data.max_words or None,
        max_tokens=data.max_tokens or None,
        vocab=vocab,
    )


def lane_for(config: Config, *, shares: bool = False) -> Lane:
    """Where the work of a run is done: its device, which it may share, and on the CPU its threads."""
    return Lane(resolve_device(config.train.device), _threads(config), shares=shares)


def from_anywhere(config: Config) -> Config:
    """Make the paths absolute, so that a run can be resumed from another folder than it was started in."""
    data = config.data
    name = data.name if data.name in DESCRIPTIONS else str(Path(data.name).absolute())
    return replace(config, data=replace(data, name=name, data_dir=data.data_dir and str(Path(data.data_dir).absolute())))


def set_threads(config: Config) -> None:
    """Choose the CPU threads of this process as the configuration wants them."""
    if threads := _threads(config):
        torch.set_num_threads(threads)


def _threads(config: Config) -> int:
    """A small model is as fast with one, and stays fast when another program wants the cores; 0 leaves it to torch."""
    return config.train.threads or (1 if config.model.hidden <= SMALL else 0)
