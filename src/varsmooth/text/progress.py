"""A progress bar for reading and counting long texts: on a terminal's standard error, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Advance]:
    """Show a bar that goes away at its end; what is yielded is told of every amount that is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ignore
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(description, total=total)
        yield lambda amount: bars.advance(task, amount)


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show that nothing can be done but wait."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bars.add_task(description, total=None)
        yield


def _ignore(_: int) -> None:
    pass
