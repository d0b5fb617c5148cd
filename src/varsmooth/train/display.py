"""A run's progress: a bar on a terminal, plain lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from varsmooth.errors import InputError
from varsmooth.train.loop import Metrics


class RunDisplay:
    """Shows steps, speed, time left and the best development perplexity so far."""

    def __init__(
        self, console: Console, title: str, steps: int, start: int, tokens_per_step: int, tensorboard: Path | None = None
    ) -> None:
        self.console = console
        self.title = title
        self.start = start
        self.steps = steps
        self.tokens_per_step = tokens_per_step
        self.best = float("inf")
        self.began = time.perf_counter()
        self.writer = _summary_writer(tensorboard, start) if tensorboard else None
        self.bar = _bar(console)
        self.task = self.bar.add_task(title, total=steps, completed=start, speed="", best="")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.bar.stop()
        if self.writer is not None:
            self.writer.close()

    def stepped(self, step: int) -> None:
        self.bar.update(self.task, completed=step, speed=f"{self._tokens_per_second(step):,.0f} tokens/s")

    def evaluated(self, metrics: Metrics) -> None:
        self.best = min(self.best, metrics["best_perplexity"])
        self.bar.update(self.task, best=f"best valid {self.best:.2f}")
        if self.writer is not None:
            for name, value in metrics.items():
                if name != "step":
                    self.writer.add_scalar(name, value, metrics["step"])
        if not self.console.is_terminal:
            self.console.print(self._line(metrics), soft_wrap=True, highlight=False)

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


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
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
