"""What the processes of one run add up in every step: gradients, the nll, and word of a signal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from varsmooth.train.interruptions import SIGNALS
from varsmooth.train.parallel import Ranks

GPU_STEPS_PER_LOOK = 16
"""On a GPU a look at the signals waits for the device."""
ALIGNED = 4
"""Numbers to a multiple of which every gradient's place is rounded up: 16 bytes, as kernels like it."""


class Shares:
    """One buffer for this process's share of the gradients and of the nll, and for its signals: summed in one go."""

    def __init__(self, ranks: Ranks, parameters: Sequence[Tensor]) -> None:
        self.ranks = ranks
        sizes = [-(-parameter.numel() // ALIGNED) * ALIGNED for parameter in parameters]
        device = parameters[0].device
        self.buffer = torch.zeros(sum(sizes) + 1 + len(SIGNALS), device=device)
        *places, self._tail = torch.split(self.buffer, [*sizes, 1 + len(SIGNALS)])
        pairs = zip(places, parameters, strict=True)
        self.gradients = [place[: parameter.numel()].view(parameter.shape) for place, parameter in pairs]
        self._own_signals = torch.zeros(len(SIGNALS), device=device)

    def note_signal(self) -> None:
        """Put a signal that has arrived where the next step takes it to the others; to be called on the host."""
        if (noted := self.ranks.interruptions.received) is not None:
            self._own_signals[SIGNALS.index(noted)].fill_(1)

    def summed(self, nll: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the sums over the processes, the gradients' until the next call; the host is not asked."""
        torch._foreach_copy_(self.gradients, list(gradients))
        self._tail.copy_(torch.cat([nll.view(1), self._own_signals]))
        self.ranks.add(self.buffer)
        return self._tail[0].clone(), self.gradients

    def heed_signals(self, step: int) -> None:
        """After ``step`` steps, let this process know of a signal that any of them had; all look after the same steps."""
        if self.buffer.is_cuda and step % GPU_STEPS_PER_LOOK:
            return
        for number, count in zip(SIGNALS, self._tail[1:].tolist(), strict=True):
            if count > 0:
                self.ranks.agreed = int(number)


def checksum(tensors: Sequence[Tensor]) -> list[int]:
    """Return for each float32 tensor the sum of its bits: equal for equal tensors, and hardly ever for others."""
    return [
        int(total) for total in torch.stack([t.detach().view(torch.int32).sum(dtype=torch.int64) for t in tensors]).tolist()
    ]
