"""Where a run's work is queued, so that several runs of one process do not wait for each other."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from varsmooth.ops.lstm_layer import half_the_card

STEPS_AHEAD = 16
"""Steps that may wait in a GPU's queue: enough to bridge another run's evaluation, few enough to obey a signal soon."""
STEPS_PER_MARK = 4
_spare: dict[torch.device, list[torch.cuda.Stream]] = {}
"""Streams of closed lanes. torch has 32 and then gives them out again: were each run to take a new one, two would share it."""


class Lane:
    """One run's own: on a GPU a stream, into which only a few steps are queued ahead; on the CPU a number of threads.

    A run that ``shares`` the GPU leaves room beside its recurrent layers for those of another.
    """

    def __init__(self, device: torch.device, threads: int = 0, *, shares: bool = False) -> None:
        self.threads, self.shares = threads, shares
        self._spare = _spare.setdefault(device, [])
        self.stream = self._own_stream(device) if device.type == "cuda" else None
        self._marks: deque[torch.cuda.Event] = deque()
        self._steps = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Everything that a run does (building, stepping, evaluating, saving) is done inside this."""
        threads = torch.get_num_threads()
        if self.threads not in (0, threads):
            torch.set_num_threads(self.threads)
        try:
            # The stream: does nothing for None.
            with torch.cuda.stream(self.stream), half_the_card() if self.shares else nullcontext():
                yield
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)

    def stepped(self) -> None:
        """Take note of a step, as done or as queued."""
        self._steps += 1
        if self.stream is not None and self._steps % STEPS_PER_MARK == 0:
            # Whoever waits for it leaves the core to others.
            mark = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            mark.record(self.stream)
            self._marks.append(mark)

    def ready(self) -> bool:
        """Whether another step may be queued without waiting."""
        while self._marks and self._marks[0].query():  # type: ignore[no-untyped-call]
            self._marks.popleft()
        return not self._full

    def wait(self) -> None:
        """Wait until another step may be queued."""
        while self._full:
            self._marks.popleft().synchronize()

    def close(self) -> None:
        """Give back the memory that a run's end left behind; it would serve this lane's stream alone."""
        if self.stream is not None:
            self.stream.synchronize()
            self._marks.clear()
            gc.collect()
            torch.cuda.empty_cache()
            if self.stream not in self._spare:
                self._spare.append(self.stream)

    def _own_stream(self, device: torch.device) -> torch.cuda.Stream:
        return self._spare.pop() if self._spare else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def _full(self) -> bool:
        return len(self._marks) * STEPS_PER_MARK >= STEPS_AHEAD


def settled(device: torch.device) -> Iterator[None]:
    """Give way until all that the current stream has been given is done, so that asking for a result holds up nobody."""
    if device.type == "cuda":
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        while not done.query():  # type: ignore[no-untyped-call]
            yield
