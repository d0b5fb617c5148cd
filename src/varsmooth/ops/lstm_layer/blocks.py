"""How the work of a layer is cut into programs that all fit on the GPU at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from varsmooth.ops.backend import kernels_for

HELD_BYTES_PER_THREAD = 512
"""Half of a thread's 255 registers may hold weights; the rest is for states, sums and addresses."""
SHARED_BYTES = 128 * 1024
LARGEST_WIDTH = 1024


@dataclass(frozen=True)
class Blocks:
    """A program owns ``units`` units of ``rows`` (8, 16 or 32) sequences; its warps (8 at most) split the contraction."""

    rows: int
    units: int
    warps: int

    def groups(self, batch: int) -> int:
        return -(-batch // self.rows)

    def programs(self, batch: int, width: int) -> int:
        return self.groups(batch) * -(-width // self.units)

    def splits(self, width: int) -> int:
        return min(self.warps, padded(width) // 32)

    def fit(self, batch: int, width: int, item: int, processors: int) -> bool:
        """Whether all programs can run at once, one on each processor, with their weights in registers."""
        held = 4 * self.units * padded(width) * item
        sums = self.splits(width) * 4 * self.units * self.rows * 4
        on_chip = held <= HELD_BYTES_PER_THREAD * 32 * self.warps and max(held, sums) <= SHARED_BYTES
        return on_chip and self.programs(batch, width) <= processors


FORWARD = [Blocks(16, 16, 4), Blocks(16, 16, 8), Blocks(32, 16, 8)]
BACKWARD = [Blocks(16, 16, 8), Blocks(32, 16, 8)]
"""In the order of preference: small blocks have the shortest steps."""


def padded(width: int) -> int:
    """Return the length of the contraction: tiles are powers of two, and loads are made for runs of 32."""
    return max(32, 1 << (width - 1).bit_length())


def choose(batch: int, width: int, item: int, processors: int) -> tuple[Blocks, Blocks] | None:
    """Return the blocks of the forward and the backward program, or None where no choice fits on the GPU at once."""
    fitting = [[blocks for blocks in choices if blocks.fit(batch, width, item, processors)] for choices in (FORWARD, BACKWARD)]
    return (fitting[0][0], fitting[1][0]) if all(fitting) else None


def processors_of(tensor: Tensor) -> int:
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def supported(projected: Tensor, weight: Tensor) -> bool:
    """Whether ``lstm_layer`` runs as kernels on these tensors."""
    _, batch, columns = projected.shape
    width = columns // 4
    if not kernels_for(projected) or projected.dtype not in (torch.bfloat16, torch.float32) or weight.dtype != projected.dtype:
        return False
    if width % 16 or width > LARGEST_WIDTH:
        return False
    return choose(batch, width, projected.element_size(), processors_of(projected)) is not None
