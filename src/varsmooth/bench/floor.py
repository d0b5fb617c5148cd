"""The time that a step cannot do without: its matrix products and the bytes that must move, at rates that an H200 reaches.

Counted per part, for bf16 arithmetic with fp32 weights, gradients and second moments:

- matrix products, forward and twice backward;
- parameters and their gradients, once in and once out of memory where a part needs them;
- the logits, kept in bf16: written once, read by both products of the backward pass;
- vectors of the window are free: [window, batch, size] fits the second-level cache.

A loss that computes its logits twice instead of keeping them trades those bytes for a third more products of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from varsmooth.bench.workload import Workload

FLOPS_PER_SECOND = 790e12
BYTES_PER_SECOND = 4.3e12
HALF, SINGLE = 2, 4
"""bytes of a bf16 and of an fp32 number"""
GATES = 4
PASSES = 3
"""A product in the forward pass makes two in the backward pass."""


@dataclass(frozen=True)
class Work:
    """Floating-point operations of matrix products, and bytes to and from memory."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    @property
    def milliseconds(self) -> float:
        return 1000 * (self.flops / FLOPS_PER_SECOND + self.bytes / BYTES_PER_SECOND)


def recurrent_stack(load: Workload) -> Work:
    """Forward and backward; the weights are read in bf16 in both, their gradients are written."""
    weights = _recurrent_weights(load)
    return Work(PASSES * 2 * _tokens(load) * weights, weights * (2 * HALF + SINGLE))


def output_loss(load: Workload) -> Work:
    """Forward and backward of linear layer, softmax and cross-entropy; the table is read in both, its gradient written."""
    logits, table = _tokens(load) * load.words, _table(load)
    return Work(PASSES * 2 * logits * load.size, logits * 3 * HALF + table * (2 * HALF + SINGLE))


def look_up(load: Workload) -> Work:
    """Rows are read and written; their gradients are read and added to those of the table."""
    return Work(bytes=_tokens(load) * load.size * (HALF + HALF + HALF + 2 * SINGLE))


def table_draw(load: Workload) -> Work:
    """The table is read and its draw written; the draw's gradient is read and the table's written."""
    return Work(bytes=_table(load) * (SINGLE + HALF + HALF + SINGLE))


def optimiser(load: Workload) -> Work:
    """Weights and second moments are read and written, gradients read for their norm and again, a bf16 copy is written."""
    return Work(bytes=parameters(load) * (2 * SINGLE + 2 * SINGLE + 2 * SINGLE + HALF))


def step(load: Workload) -> Work:
    """The whole step; draws of tables cost nothing here, because they can be made where a table is read."""
    return recurrent_stack(load) + output_loss(load) + look_up(load) + optimiser(load)


def parameters(load: Workload) -> int:
    """Tied tables, the softmax's bias, and the stack with one bias per gate."""
    return _table(load) + load.words + _recurrent_weights(load) + load.layers * GATES * load.size


def _tokens(load: Workload) -> int:
    return load.batch * load.window


def _table(load: Workload) -> int:
    return load.words * load.size


def _recurrent_weights(load: Workload) -> int:
    return load.layers * 2 * GATES * load.size**2
