"""The training loop: steps, evaluations, saved states, and an orderly stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from varsmooth.train.folder import RunFolder
from varsmooth.train.lane import settled
from varsmooth.train.trainer import Trainer
from varsmooth.train.writer import Writer

Metrics = dict[str, Any]
OUT_OF_TIME = -1
"""What stands for a signal where a run is stopped because the time given to its process is up."""


class Display(Protocol):
    """Shows a run's progress to a person."""

    def stepped(self, step: int) -> None: ...

    def evaluated(self, metrics: Metrics) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """Why training ended: ``steps``, ``patience`` or ``signal``."""

    reason: str
    signal: int | None = None


class Interrupted(Exception):  # noqa: N818, it is no error
    """A signal arrived where it may stop the work at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class Interruptions:
    """While active, SIGINT and SIGTERM are noted instead of obeyed, so that the step in progress can end and be saved."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work of which nothing is kept: a signal raises ``Interrupted`` where it arrives, and so does one noted before."""
        self._at_once = True
        try:
            if self.received is not None:
                raise Interrupted(self.received)
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received = number
        if self._at_once:
            raise Interrupted(number)


def fit(
    trainer: Trainer,
    folder: RunFolder,
    writer: Writer,
    *,
    validate: Callable[[], Generator[None, None, float]],
    save_best: Callable[[], None],
    ending: Callable[[], object],
    interruptions: Interruptions,
    display: Display,
) -> Generator[None, None, Outcome]:
    """Train until the steps, the patience or a signal ends it, giving way after each step and wherever it would wait for a GPU.

    A state is saved at intervals, unless the one before it still waits for the disk, and at the end. Before that last one comes
    ``ending``: a run that is killed after it has no step left, when it is resumed, to measure its pace by.
    """
    settings, progress = trainer.settings, trainer.progress
    every = settings.eval_every or trainer.steps_per_epoch
    outcome = Outcome("steps")
    while progress.step < settings.steps:
        if _out_of_patience(trainer):
            outcome = Outcome("patience")
            break
        trainer.step()
        display.stepped(progress.step)
        if progress.step % every == 0 or progress.step == settings.steps:
            display.evaluated((yield from _evaluate(trainer, folder, validate, save_best)))
        yield
        if interruptions.received is not None:
            outcome = Outcome("signal", interruptions.received)
            break
        last = progress.step == settings.steps or _out_of_patience(trainer)
        if progress.step % settings.save_every == 0 and not last and not writer.behind:
            yield from _save(trainer, writer)
    yield from settled(trainer.device)
    ending()
    yield from _save(trainer, writer)
    writer.flush()
    return outcome


def _evaluate(
    trainer: Trainer, folder: RunFolder, validate: Callable[[], Generator[None, None, float]], save_best: Callable[[], None]
) -> Generator[None, None, Metrics]:
    """Evaluate (the averaged weights, where there are any), keep the best and write a line of metrics."""
    yield from settled(trainer.device)
    trainer.check_finite()
    lr, means = trainer.lr, trainer.take_means()
    trainer.swap_average()
    try:
        perplexity = yield from validate()
        if trainer.observe(perplexity):
            save_best()
    finally:
        trainer.swap_average()
    progress = trainer.progress
    metrics = {
        "step": progress.step,
        "epoch": progress.step / trainer.steps_per_epoch,
        "lr": lr,
        **means,
        "valid_perplexity": perplexity,
        "best_perplexity": progress.best_perplexity,
    }
    folder.append_metrics(metrics)
    return metrics


def _out_of_patience(trainer: Trainer) -> bool:
    return 0 < trainer.settings.patience <= trainer.progress.since_best


def _save(trainer: Trainer, writer: Writer) -> Iterator[None]:
    yield from settled(trainer.device)
    trainer.check_finite()
    writer.state(trainer.progress.step, trainer.tensors(), trainer.meta())
