"""The training loop: steps, evaluations, saved states, and an orderly stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from varsmooth.train.checkpoint import save_state
from varsmooth.train.folder import RunFolder
from varsmooth.train.trainer import Trainer

Metrics = dict[str, Any]


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
    """While active, SIGINT and SIGTERM are noted instead of obeyed, so that the step in progress can end and be saved.

    With ``at_once`` they raise ``Interrupted`` where they arrive.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received = number
        if self.at_once:
            raise Interrupted(number)


def fit(
    trainer: Trainer,
    folder: RunFolder,
    *,
    validate: Callable[[], float],
    save_best: Callable[[], None],
    interruptions: Interruptions,
    display: Display,
) -> Outcome:
    """Train until the steps, the patience or a signal ends it. A state is saved at intervals and at the end."""
    settings, progress = trainer.settings, trainer.progress
    every = settings.eval_every or trainer.steps_per_epoch
    while progress.step < settings.steps:
        if settings.patience and progress.since_best >= settings.patience:
            _save(trainer, folder)
            return Outcome("patience")
        trainer.step()
        display.stepped(progress.step)
        if progress.step % every == 0 or progress.step == settings.steps:
            display.evaluated(_evaluate(trainer, folder, validate, save_best))
        if interruptions.received is not None:
            _save(trainer, folder)
            return Outcome("signal", interruptions.received)
        if progress.step % settings.save_every == 0:
            _save(trainer, folder)
    _save(trainer, folder)
    return Outcome("steps")


def _evaluate(trainer: Trainer, folder: RunFolder, validate: Callable[[], float], save_best: Callable[[], None]) -> Metrics:
    """Evaluate (the averaged weights, where there are any), keep the best and write a line of metrics."""
    trainer.check_finite()
    lr = trainer.lr
    trainer.swap_average()
    try:
        perplexity = validate()
        if trainer.observe(perplexity):
            save_best()
    finally:
        trainer.swap_average()
    progress = trainer.progress
    metrics = {
        "step": progress.step,
        "epoch": progress.step / trainer.steps_per_epoch,
        "lr": lr,
        **trainer.take_means(),
        "valid_perplexity": perplexity,
        "best_perplexity": progress.best_perplexity,
    }
    folder.append_metrics(metrics)
    return metrics


def _save(trainer: Trainer, folder: RunFolder) -> None:
    trainer.check_finite()
    save_state(folder, trainer.progress.step, trainer.tensors(), trainer.meta())
