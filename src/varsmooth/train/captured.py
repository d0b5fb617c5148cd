"""How a step runs: as one CUDA graph, captured once and then replayed with a single call, or launch by launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from varsmooth.config import TrainConfig
from varsmooth.errors import InputError
from varsmooth.ops.backend import has_triton, reference_only

Result = TypeVar("Result")
WARM_UP = 3
"""Steps taken before capture, in which libraries choose their algorithms and kernels are compiled."""


class Captured(Generic[Result]):
    """Calls ``step`` the first few times, captures it, and from then on replays it; the result's tensors stay the same."""

    def __init__(self, step: Callable[[], Result]) -> None:
        self.step = step
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Result

    def __call__(self) -> Result:
        self.calls += 1
        if self.calls <= WARM_UP:
            return self.step()
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        self.graph.replay()
        return self.result

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the card; this one does nothing but the step.
        with _no_collection(), _own_workspaces(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.result = self.step()
        self.graph = graph


def way_to_step(
    step: Callable[[], Result], settings: TrainConfig, device: torch.device, processes: int = 1
) -> Callable[[], Result]:
    """Return ``step`` as ``train.engine`` wants it: kernels in a CUDA graph, or plain torch; only that works without Triton.

    Several processes launch their kernels one by one, unless a graph is asked for: its sum over cards has not been tried.
    """
    possible = device.type == "cuda" and has_triton()
    if settings.engine == "graph" and not possible:
        raise InputError("train.engine = graph needs a GPU and Triton; use train.engine=eager or auto")
    if not possible or settings.engine == "eager":
        return _plain(step)
    return Captured(step) if processes == 1 or settings.engine == "graph" else step


def _plain(step: Callable[[], Result]) -> Callable[[], Result]:
    def plain() -> Result:
        with reference_only():
            return step()

    return plain


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now and not within: a graph that has had its day, freed during a capture, would spoil it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Within this block cuBLAS begins with new workspaces, which lie in the graph's own memory, and nobody is given them later.

    torch keeps one for each stream and uses it for every graph that is captured there. Graphs that shared one would spoil each
    other's products when they run side by side, and the end of one would free what the other still works in. A stream for each
    graph does not help: torch has 32, and gives them out again.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
