"""Which form of an operation runs: its kernel on a GPU, its reference everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_reference_only: ContextVar[bool] = ContextVar("reference_only", default=False)


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def kernels_for(tensor: Tensor) -> bool:
    """Whether operations on ``tensor`` run as kernels."""
    return tensor.is_cuda and has_triton() and not _reference_only.get()


def gpu_autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """Return what products of a tensor on a GPU will be computed in, where autocast says so; kernels, which it does not see
    into, follow it by themselves."""
    return torch.get_autocast_dtype("cuda") if tensor.is_cuda and torch.is_autocast_enabled("cuda") else None


@contextmanager
def reference_only() -> Iterator[None]:
    """Within this block every operation runs as its reference, on any device."""
    token = _reference_only.set(True)
    try:
        yield
    finally:
        _reference_only.reset(token)


class Branch:
    """Work that may run beside what is queued after this was made: in a CUDA graph on a second stream, elsewhere in its turn.

    Autograd runs the gradients of such work on that stream too. Outside a graph launches take so long that nothing is gained,
    and what is made at the first call and kept would have to be guarded.
    """

    def __init__(self, tensor: Tensor) -> None:
        captures = kernels_for(tensor) and torch.cuda.is_current_stream_capturing()
        self._stream = _second_stream(tensor.device) if captures else None
        self._start = None if self._stream is None else torch.cuda.current_stream(tensor.device).record_event()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Queue this block; it waits only for what was queued before the branch was made."""
        if self._stream is None or self._start is None:
            yield
            return
        self._stream.wait_event(self._start)
        with torch.cuda.stream(self._stream):
            yield

    def join(self, result: Tensor) -> Tensor:
        """Return the block's ``result`` for what is queued from now on."""
        if self._stream is not None:
            current = torch.cuda.current_stream(result.device)
            current.wait_stream(self._stream)
            result.record_stream(current)
        return result


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
