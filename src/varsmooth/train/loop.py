"""The training loop: steps, evaluations, saved states, and an orderly stop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal, Protocol, TypeAlias

from varsmooth.train.lane import settled
from varsmooth.train.trainer import Trainer
from varsmooth.train.writer import RunWriter

Metrics = dict[str, Any]
Reason: TypeAlias = Literal["time", "given up"] | int
"""Why a run is stopped: the time of its process is up, it is given up, or a signal, by its number."""
Outcome: TypeAlias = Literal["steps", "patience"] | Reason
"""Why training ended: it has taken its steps, it has lost its patience, or it was stopped."""


A_MOMENT = 1e-3
"""Seconds to wait for the disk before others have their turn."""


class Display(Protocol):
    """Shows a run's progress to a person."""

    def stepped(self, step: int) -> None: ...

    def evaluated(self, metrics: Metrics) -> None: ...


def fit(
    trainer: Trainer,
    writer: RunWriter,
    *,
    validate: Callable[[], Generator[None, None, float]],
    save_best: Callable[[], None],
    ending: Callable[[], object],
    reason_to_stop: Callable[[], Reason | None],
    display: Display,
) -> Generator[None, None, Outcome]:
    """Train until steps, patience or a reason to stop end it, giving way after each step and while a GPU or the disk works.

    A state is saved at intervals, unless the one before it still waits for the disk, and at the end. Before that last one comes
    ``ending``: a run that is killed after it has no step left, when it is resumed, to measure its pace by.
    """
    settings, progress = trainer.settings, trainer.progress
    every = settings.eval_every or trainer.steps_per_epoch
    outcome: Outcome = "steps"
    while progress.step < settings.steps:
        if _out_of_patience(trainer):
            outcome = "patience"
            break
        trainer.step()
        display.stepped(progress.step)
        if progress.step % every == 0 or progress.step == settings.steps:
            display.evaluated((yield from _evaluate(trainer, writer, validate, save_best)))
        yield
        if (reason := reason_to_stop()) is not None:
            outcome = reason
            break
        last = progress.step == settings.steps or _out_of_patience(trainer)
        if progress.step % settings.save_every == 0 and not last and not writer.behind:
            yield from _save(trainer, writer)
    yield from settled(trainer.device)
    ending()
    yield from _save(trainer, writer)
    while not writer.is_through(A_MOMENT):
        yield
    writer.flush()
    return outcome


def _evaluate(
    trainer: Trainer, writer: RunWriter, validate: Callable[[], Generator[None, None, float]], save_best: Callable[[], None]
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
    writer.metrics(metrics)
    return metrics


def _out_of_patience(trainer: Trainer) -> bool:
    return 0 < trainer.settings.patience <= trainer.progress.since_best


def _save(trainer: Trainer, writer: RunWriter) -> Iterator[None]:
    yield from settled(trainer.device)
    trainer.check_finite()
    writer.state(trainer.progress.step, trainer.tensors(), trainer.meta())
