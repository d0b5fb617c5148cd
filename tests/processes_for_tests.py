"""Processes that a test starts: none outlives it, and nothing waits for them without an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 240.0
"""Seconds after which a test gives up; far more than anything takes that works."""


@contextmanager
def started(arguments: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start Python with these arguments, in a group of its own; it and all below it are gone afterwards, whatever happens."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    # A sweep refuses workers of another commit, and someone may be at work in this tree while its tests run.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VARSMOOTH_COMMIT": "as-tested", **options.pop("env", {})}
    with subprocess.Popen([sys.executable, *arguments], env=environment, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            end(process)


def command(arguments: Sequence[str]) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start varsmooth with these arguments."""
    return started(["-m", "varsmooth", *arguments])


def completed(arguments: Sequence[str]) -> None:
    """Run varsmooth with these arguments to its end, which must be a good one."""
    with command(arguments) as process:
        _, messages = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, messages


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process, its group, and what it has started in groups of their own, as torchrun does."""
    deeper = below(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for number in deeper:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def below(root: int) -> list[int]:
    """The processes that a process has started, and those that they have, as Linux lists them."""
    try:
        children = [int(child) for child in Path(f"/proc/{root}/task/{root}/children").read_text().split()]
    except OSError:
        return []
    return children + [deeper for child in children for deeper in below(child)]


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = PATIENCE) -> None:
    """Wait for something that a process does; not after it has ended, and not for ever."""
    until = time.monotonic() + seconds
    while not reached():
        assert process is None or process.poll() is None, process.communicate(timeout=10)
        assert time.monotonic() < until, f"waited in vain for {seconds:g} s"
        time.sleep(0.005)
