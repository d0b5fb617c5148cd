"""One gradient for a table that several draws read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from varsmooth.ops.backend import kernels_for


class Gradient:
    """A buffer [V, D] that is made by the first draw to give back, and belongs to the stream which that ran on."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def at_home(self, *read: Tensor) -> Iterator[None]:
        """Queue this block, which reads ``read`` and adds to the buffer, on the buffer's stream; the current one goes on."""
        if self._stream is None or self._stream == torch.cuda.current_stream():
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        for tensor in read:
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            yield

    def keep(self, buffer: Tensor) -> None:
        """Keep what the current stream has written."""
        self.buffer = buffer
        self._stream = torch.cuda.current_stream() if buffer.is_cuda else None

    def take(self) -> Tensor | None:
        """Return the buffer to the current stream and forget it, so that a second pass starts anew."""
        if self.buffer is not None and self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            self.buffer.record_stream(torch.cuda.current_stream())
        buffer, self.buffer, self._stream = self.buffer, None, None
        return buffer


@dataclass(frozen=True, eq=False)
class GradientSink:
    """Lets all draws of one table in a forward pass add their gradients into one buffer.

    Without it each draw returns a gradient of the table's size, mostly zeros for a look-up, and autograd adds them up.
    """

    table: Tensor
    """the table, behind a node that autograd reaches when all draws are done"""
    gradient: Gradient

    @classmethod
    def of(cls, weight: Tensor) -> GradientSink | None:
        """Return a sink for one forward pass, or None where nothing would use it: only kernels write into a given buffer."""
        if not (kernels_for(weight) and weight.requires_grad and torch.is_grad_enabled()):
            return None
        gradient = Gradient()
        return cls(_Gathered.apply(weight, gradient), gradient)


class _Gathered(torch.autograd.Function):
    """The table itself; backward, what has gathered in the buffer, as the draws return nothing to autograd."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gradient: Gradient) -> Tensor:
        ctx.gradient = gradient
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, returned: Tensor | None) -> tuple[Tensor | None, None]:
        gathered = ctx.gradient.take()
        if gathered is None or returned is None:
            return returned if gathered is None else gathered, None
        return gathered + returned, None
