"""The progress of runs: a bar each on a terminal, plain lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from varsmooth.errors import InputError
from varsmooth.train.loop import Metrics

REFRESH = 0.1
"""Seconds between two updates of a bar: a step may take less than drawing it would."""


class Screen:
    """The bars of the runs under way, on a terminal; with ``total`` steps also one for all runs together."""

    def __init__(self, console: Console, total: int | None = None) -> None:
        self.console = console
        self.bars = _bars(console)
        self.total = None if total is None else self.bars.add_task("all runs", total=total, speed="", best="")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    @property
    def shared(self) -> bool:
        """Whether several runs are shown."""
        return self.total is not None

    def advance_total(self, steps: int) -> None:
        """Count steps of the total; a run that ends early counts the steps it did not need as well."""
        if self.total is not None:
            self.bars.advance(self.total, steps)

    def say(self, line: str) -> None:
        say(self.console, line)


class RunDisplay:
    """Shows a run's steps, speed, time left and the best development perplexity so far."""

    def __init__(
        self, screen: Screen, title: str, steps: int, start: int, tokens_per_step: int, tensorboard: Path | None = None
    ) -> None:
        self.screen = screen
        self.title = title
        self.start = self.shown = start
        self.steps = steps
        self.tokens_per_step = tokens_per_step
        self.best = float("inf")
        self.began = self.refreshed = time.perf_counter()
        self.writer = _summary_writer(tensorboard, start) if tensorboard else None
        self.task = screen.bars.add_task(title, total=steps, completed=start, speed="", best="")
        screen.advance_total(start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """One run's bar stays where it ended; among many it makes room."""
        if self.screen.shared:
            self.screen.bars.remove_task(self.task)
            self.screen.advance_total(self.steps - self.shown)
        if self.writer is not None:
            self.writer.close()

    def stepped(self, step: int) -> None:
        now = time.perf_counter()
        if now - self.refreshed >= REFRESH or step == self.steps:
            self.screen.bars.update(self.task, completed=step, speed=f"{self._tokens_per_second(step):,.0f} tokens/s")
            self.screen.advance_total(step - self.shown)
            self.refreshed, self.shown = now, step

    def evaluated(self, metrics: Metrics) -> None:
        self.best = min(self.best, metrics["best_perplexity"])
        self.screen.bars.update(self.task, best=f"best valid {self.best:.2f}")
        if self.writer is not None:
            for name, value in metrics.items():
                if name != "step":
                    self.writer.add_scalar(name, value, metrics["step"])
        if not self.screen.console.is_terminal:
            self.screen.say(self._line(metrics))

    def _line(self, metrics: Metrics) -> str:
        step = metrics["step"]
        left = (self.steps - step) * (time.perf_counter() - self.began) / max(step - self.start, 1)
        return (
            f"{self.title}: step {step}/{self.steps}, epoch {metrics['epoch']:.1f}, train nll {metrics['nll']:.3f}, "
            f"valid perplexity {metrics['valid_perplexity']:.2f} (best {self.best:.2f}), "
            f"{self._tokens_per_second(step):,.0f} tokens/s, {left:.0f} s left"
        )

    def _tokens_per_second(self, step: int) -> float:
        return (step - self.start) * self.tokens_per_step / max(time.perf_counter() - self.began, 1e-9)


def say(console: Console, line: str) -> None:
    """Print a line as it is, however long, paths in brackets or with names of emoji included."""
    console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
        console=console,
    )


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs TensorBoard: pip install 'varsmooth[log]'") from None
    return SummaryWriter(str(folder), purge_step=step)
