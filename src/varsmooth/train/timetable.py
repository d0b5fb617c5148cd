"""What a step is told, as tensors: it reads its own number, so that a captured step can be replayed without new arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

LENGTH = 1024


Whole = TypeVar("Whole", int, Tensor)
Real = TypeVar("Real", float, Tensor)


class Moment(NamedTuple, Generic[Whole, Real]):
    """What one step needs to know besides the weights; numbers on the host, 0-d tensors on the device."""

    step: Whole
    start: Whole
    """where its window begins in the text"""
    lr: Real
    correction: Real
    """``bias_correction`` of the second moments"""
    average_step: Real
    """how far the moving average goes towards the weights"""
    keep: Real
    """0 where the recurrent state is forgotten, else 1"""


WHOLE = 2
"""How many parts of a moment, the first, are whole numbers."""


class Timetable:
    """The next ``LENGTH`` moments on the device, with a cursor that steps advance; the host writes a new page when it ends."""

    def __init__(self, device: torch.device) -> None:
        self.whole = torch.zeros(WHOLE, LENGTH, dtype=torch.int64, device=device)
        self.real = torch.zeros(len(Moment._fields) - WHOLE, LENGTH, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.left = 0

    def prepare(self, step: int, moment: Callable[[int], Moment[int, float]]) -> None:
        """Make sure that the cursor is at ``step``; to be called on the host before each step."""
        if self.left == 0:
            page = [moment(step + ahead) for ahead in range(LENGTH)]
            self._copy(self.whole, [row[:WHOLE] for row in page])
            self._copy(self.real, [row[WHOLE:] for row in page])
            self.cursor.zero_()
            self.left = LENGTH
        self.left -= 1

    def forget(self) -> None:
        """Drop what is planned, because the plan has changed."""
        self.left = 0

    def now(self) -> Moment[Tensor, Tensor]:
        """Return the moment at the cursor, as tensors of its own."""
        whole, real = self.whole.index_select(1, self.cursor), self.real.index_select(1, self.cursor)
        return Moment(*whole[:, 0].unbind(), *real[:, 0].unbind())

    def advance(self) -> None:
        self.cursor.add_(1)

    @staticmethod
    def _copy(target: Tensor, rows: Sequence[tuple[float, ...]]) -> None:
        page = torch.tensor(rows, dtype=target.dtype).T.contiguous()
        # From pinned memory the copy waits for nothing; torch keeps the memory until it is done.
        target.copy_(page.pin_memory() if target.is_cuda else page, non_blocking=True)
