"""Which form of an operation runs: its kernel on a GPU, its reference everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

from torch import Tensor

_reference_only: ContextVar[bool] = ContextVar("reference_only", default=False)


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def kernels_for(tensor: Tensor) -> bool:
    """Whether operations on ``tensor`` run as kernels."""
    return tensor.is_cuda and has_triton() and not _reference_only.get()


@contextmanager
def reference_only() -> Iterator[None]:
    """Within this block every operation runs as its reference, on any device."""
    token = _reference_only.set(True)
    try:
        yield
    finally:
        _reference_only.reset(token)
