"""How the work of a layer is cut into programs that all fit on the GPU at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from varsmooth.ops.backend import kernels_for

HELD_BYTES_PER_THREAD = 512
"""Half of a thread's 255 registers may hold weights; the rest is for states, sums and addresses."""
SHARED_RESERVE = 1024
"""Bytes of shared memory that CUDA keeps of each program's."""
LARGEST_WIDTH = {torch.bfloat16: 1024, torch.float32: 256}
"""Wider layers in fp32 do not fit into registers, and cuDNN is faster."""


@dataclass(frozen=True)
class Gpu:
    """What programs have to share: processors, and the bytes of shared memory that one program may have."""

    processors: int
    shared: int


@dataclass(frozen=True)
class Blocks:
    """A program owns ``units`` units of ``rows`` (8, 16 or 32) sequences; its warps (8 at most) split the contraction."""

    rows: int
    units: int
    warps: int = 8

    def groups(self, batch: int) -> int:
        return -(-batch // self.rows)

    def unit_blocks(self, width: int) -> int:
        return -(-width // self.units)

    def programs(self, batch: int, width: int) -> int:
        return self.groups(batch) * self.unit_blocks(width)

    def splits(self, width: int) -> int:
        return min(self.warps, padded(width) // 32)

    def fit(self, batch: int, width: int, item: int, gpu: Gpu) -> bool:
        """Whether all programs can run at once, one on each processor, with their weights in registers."""
        held = 4 * self.units * padded(width) * item
        sums = self.splits(width) * 4 * self.units * self.rows * 4
        # The weights pass through shared memory on their way into registers, the sums at every step.
        on_chip = held <= HELD_BYTES_PER_THREAD * 32 * self.warps and max(held, sums) + SHARED_RESERVE <= gpu.shared
        return on_chip and self.programs(batch, width) <= gpu.processors


CHOICES = [Blocks(8, 32), Blocks(16, 16), Blocks(16, 32), Blocks(32, 16)]
"""In the order of preference: few rows have the shortest steps, and many units the least to read at each."""


def padded(width: int) -> int:
    """Return the length of the contraction: tiles are powers of two, and loads are made for runs of 32."""
    return max(32, 1 << (width - 1).bit_length())


_half: ContextVar[bool] = ContextVar("half_the_card", default=False)


@contextmanager
def half_the_card() -> Iterator[None]:
    """Within this block a layer takes half of the processors where it can, so that those of two runs are done side by side."""
    token = _half.set(True)
    try:
        yield
    finally:
        _half.reset(token)


def choose(batch: int, width: int, item: int, gpu: Gpu) -> Blocks | None:
    """Return the blocks of both programs, or None where no choice fits on the GPU at once."""
    parts = [replace(gpu, processors=gpu.processors // 2), gpu] if _half.get() else [gpu]
    return next((blocks for part in parts for blocks in CHOICES if blocks.fit(batch, width, item, part)), None)


def gpu_of(tensor: Tensor) -> Gpu:
    properties = torch.cuda.get_device_properties(tensor.device)
    return Gpu(properties.multi_processor_count, properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]


def supported(weight: Tensor, batch: int, dtype: torch.dtype | None = None) -> bool:
    """Whether a layer with this recurrent matrix [4 * H, H], taken as ``dtype``, runs as kernels on ``batch`` sequences."""
    width, dtype = weight.shape[1], dtype or weight.dtype
    if not kernels_for(weight) or width % 16 or width > LARGEST_WIDTH.get(dtype, 0):
        return False
    return choose(batch, width, dtype.itemsize, gpu_of(weight)) is not None
