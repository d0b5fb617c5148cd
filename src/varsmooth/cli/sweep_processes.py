"""A sweep on the CPU: several processes, each a worker of its own; this one watches them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from varsmooth.cli.app import BAD_INPUT
from varsmooth.cli.output import say
from varsmooth.errors import InputError
from varsmooth.sweep import Board, SweepEnd
from varsmooth.text.chunks import default_workers
from varsmooth.train.interruptions import Interruptions

LOOK = 2.0
"""Seconds between two looks at how many trials are through."""
PATIENCE = 0.1


def run_processes(arguments: Sequence[str], number: int, board: Board, console: Console) -> SweepEnd:
    """Run this many workers and wait for them; a signal is passed on, and one that dies leaves its trial to the others."""
    with Interruptions() as interruptions:
        workers = [_start(arguments, number) for _ in range(number)]
        relays = [threading.Thread(target=_relay, args=(worker.stderr, console), daemon=True) for worker in workers]
        for relay in relays:
            relay.start()
        try:
            _watch(workers, interruptions, board, console)
        finally:
            # Where looking at the database failed: they save their states, as after a signal to this process.
            for worker in workers:
                if worker.poll() is None:
                    worker.terminate()
            for worker in workers:
                worker.wait()
        for relay in relays:
            relay.join()
    if interruptions.received is not None:
        return SweepEnd(interruptions.received)
    if any(worker.returncode == BAD_INPUT for worker in workers) and not board.finished():
        raise InputError("the workers have stopped, for the reason above; nothing is lost: the same command goes on")
    if not board.finished() and not board.only_asked_left():
        statuses = ", ".join(str(worker.returncode) for worker in workers)
        raise InputError(f"all workers have ended ({statuses}) before the study was through; the same command goes on")
    return SweepEnd(asked=len(board.asked()))


def _watch(workers: Sequence[subprocess.Popen[str]], interruptions: Interruptions, board: Board, console: Console) -> None:
    """Wait for all workers; pass a signal on to them once."""
    passed_on = False
    with _bar(console, board) as look:
        while any(worker.poll() is None for worker in workers):
            if interruptions.received is not None and not passed_on:
                passed_on = True
                for worker in workers:
                    if worker.poll() is None:
                        worker.send_signal(interruptions.received)
            look()
            time.sleep(PATIENCE)


def _start(arguments: Sequence[str], number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "varsmooth", "sweep", *arguments, "--worker", str(os.getpid())]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE, text=True, env=environment_for(number)
    )


def environment_for(number: int) -> dict[str, str]:
    """The environment of one of several workers: together they use every core once, unless the user says how many threads."""
    threads = max(1, default_workers() // number)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


def _relay(lines: IO[str] | None, console: Console) -> None:
    """Pass on what a worker says of its trials' ends, and its complaints; its steps are its own."""
    for line in lines or ():
        if ": step " not in line:
            say(line.rstrip(), console)


@contextmanager
def _bar(console: Console, board: Board) -> Iterator[Callable[[], None]]:
    """Show the slots that are through as a bar, on a terminal; yield what is to be called again and again."""
    if not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, next_look = bar.add_task("trials", total=None), 0.0

        def look() -> None:
            nonlocal next_look
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + LOOK
                through, total = _through(board)
                bar.update(task, completed=through, total=total)

        yield look


def _through(board: Board) -> tuple[int, int | None]:
    """Return how many slots are through, and of how many, where the budget says so."""
    study = board.study
    through = sum(len(stage.outcomes()) for stage in board.stages())
    return through, len(study.arms) * (study.budget.trials + len(study.seeds)) if study.budget.trials else None
