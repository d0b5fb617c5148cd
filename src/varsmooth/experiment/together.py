"""A run of several processes: what the first does for all, and how the others follow it.

All of them go through the same training loop. The others have a folder and a writer that write nothing, and learn from the
first how an evaluation went, so that all decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from varsmooth.config import Config, to_mapping
from varsmooth.errors import InputError
from varsmooth.text import Corpus
from varsmooth.train.folder import RunFolder
from varsmooth.train.parallel import Ranks
from varsmooth.train.trainer import Trainer
from varsmooth.train.writer import Writer
from varsmooth.version import VERSION

Perplexity = Generator[None, None, float]


class FollowedFolder(RunFolder):
    """The first process's folder as the others have it: they read it, and keep what they would write to themselves."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._record: dict[str, Any] = {}

    def write(self, path: Path, data: bytes | memoryview) -> None:
        del path, data

    def write_record(self, record: Mapping[str, Any]) -> None:
        self._record = dict(record)

    def read_record(self) -> dict[str, Any]:
        return self._record or super().read_record()

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        del metrics


class FollowingWriter(Writer):
    """Writes nothing."""

    def model(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        del tensors, meta

    def state(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        del step, tensors, meta


def folder_to_create(out: Path, ranks: Ranks) -> RunFolder:
    """Make and lock the folder of a new run; only the first process does."""
    return RunFolder.create(out) if ranks.first else FollowedFolder(out)


def folder_to_continue(run: Path, ranks: Ranks) -> RunFolder:
    """Open the folder of a run, which only the first process locks."""
    return RunFolder.open(run, lock=True) if ranks.first else FollowedFolder.open(run)


def writer_for(folder: RunFolder, ranks: Ranks) -> Writer:
    return Writer(folder) if ranks.first else FollowingWriter(folder)


def refuse_differences(ranks: Ranks, config: Config, corpus: Corpus, trainer: Trainer) -> None:
    """Refuse processes that would not train the same run: with other code, settings, text, or another start."""
    if not ranks.joined:
        return
    told = ranks.exchange(
        {
            "version of varsmooth": VERSION,
            "configuration": to_mapping(config),
            "vocabulary": corpus.vocab.checksum,
            "text": corpus.checksums,
            "step to start from": trainer.progress.step,
            "weights": trainer.checksum(),
        }
    )
    _refuse_other(told, f"at step {trainer.progress.step}")


def validated(trainer: Trainer, validate: Callable[[], Perplexity] | None) -> Perplexity:
    """Return the development perplexity: the first process asks ``validate``, the others are told; all weights are compared."""
    perplexity = None if validate is None else (yield from validate())
    if not trainer.ranks.joined:
        assert perplexity is not None
        return perplexity
    told = trainer.ranks.exchange({"weights": trainer.checksum(), "perplexity": perplexity})
    found = float(told[0].pop("perplexity"))
    _refuse_other([{"weights": one["weights"]} for one in told], f"at step {trainer.progress.step}")
    return found


def _refuse_other(told: list[dict[str, Any]], when: str) -> None:
    for rank, one in enumerate(told):
        for name, value in one.items():
            if value != told[0][name]:
                raise InputError(
                    f"process {rank} of {len(told)} has another {name} than process 0 {when}: "
                    "start all of them with the same installation, command and text"
                )
