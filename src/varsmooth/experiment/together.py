"""A run of several processes: what the first does for all, and how the others follow it.

All of them go through the same training loop. The others write nothing, and learn from the first how an evaluation went, so
that all decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from varsmooth.config import Config, to_mapping
from varsmooth.errors import InputError
from varsmooth.text import Corpus
from varsmooth.train.folder import RunFolder
from varsmooth.train.parallel import Ranks
from varsmooth.train.trainer import Trainer
from varsmooth.train.writer import RunWriter, Writer
from varsmooth.version import VERSION

Perplexity = Generator[None, None, float]


class FollowingWriter:
    """Writes nothing."""

    behind = False

    def model(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        del tensors, meta

    def state(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        del step, tensors, meta

    def metrics(self, metrics: Mapping[str, Any]) -> None:
        del metrics

    def is_through(self, within: float) -> bool:
        del within
        return True

    def flush(self) -> None: ...


def folder_to_create(out: Path, ranks: Ranks) -> RunFolder:
    """Make and lock the folder of a new run; only the first process does."""
    return RunFolder.create(out) if ranks.first else RunFolder(out)


def folder_to_continue(run: Path, ranks: Ranks) -> RunFolder:
    """Open the folder of a run, which only the first process locks."""
    return RunFolder.open(run, lock=ranks.first)


def writer_for(folder: RunFolder, ranks: Ranks) -> AbstractContextManager[RunWriter]:
    return Writer(folder) if ranks.first else nullcontext(FollowingWriter())


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
