"""A sweep on the CPU: so many processes, each a worker of its own; this one watches them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from varsmooth.cli.app import BAD_INPUT
from varsmooth.errors import InputError
from varsmooth.sweep import Board, SweepEnd
from varsmooth.text.chunks import default_workers
from varsmooth.train.loop import Interruptions

LOOK = 2.0
"""Seconds between two looks at how many trials are through."""
PATIENCE = 0.1


def run_processes(arguments: Sequence[str], number: int, board: Board, console: Console) -> SweepEnd:
    """Run so many workers and wait for them; a signal is passed on, and one that dies leaves its trial to the others."""
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
    """The environment of one of so many workers: together they use every core once, unless the user says how many threads."""
    threads = max(1, default_workers() // number)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


def _relay(lines: IO[str] | None, console: Console) -> None:
    """Pass on what a worker says of its trials' ends, and its complaints; its steps are its own."""
    for line in lines or ():
        if ": step " not in line:
            console.print(line.rstrip(), soft_wrap=True, highlight=False, markup=False)


class _bar:  # noqa: N801, used like a function
    """A bar of the slots that are through, on a terminal."""

    def __init__(self, console: Console, board: Board) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.board, self.console = board, console
        self.bar = Progress(*columns, console=console, transient=True)
        self.task = self.bar.add_task("trials", total=None)
        self.next_look = 0.0

    def __enter__(self) -> _bar:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def __call__(self) -> None:
        if not self.console.is_terminal or time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + LOOK
        arms, seeds = self.board.arms, self.board.seed_stages()
        through = sum(len(stage.outcomes()) for stage in [*arms, *seeds])
        study = self.board.study
        total = len(arms) * (study.budget.trials + len(study.seeds)) if study.budget.trials else None
        self.bar.update(self.task, completed=through, total=total)
