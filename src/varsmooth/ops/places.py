"""Where rows are drawn: the sequence and the position of each row of a flattened window, described in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from varsmooth.draws import Integers
from varsmooth.errors import InputError


@dataclass(frozen=True)
class Places:
    """Row n of a window [T, B = ``columns``], flattened, stands in column n % B at time n // B.

    Its sequence is ``sequence``, plus the column if ``by_sequence``; its position is ``position``, plus the time if
    ``by_position``. So the defaults put every row at (0, 0), as for a table that the whole batch shares.
    """

    columns: int = 1
    sequence: int = 0
    position: int = 0
    by_sequence: bool = False
    by_position: bool = False

    def coordinates(self, rows: int, device: torch.device) -> tuple[Integers, Integers]:
        """Return the sequence and the position of each of the first ``rows`` rows; a number where all have the same."""
        row = torch.arange(rows, device=device) if self.by_sequence or self.by_position else 0
        sequence = self.sequence + row % self.columns if self.by_sequence else self.sequence
        position = self.position + row // self.columns if self.by_position else self.position
        return sequence, position


def check_ids(name: str, ids: Tensor, words: int) -> None:
    """Refuse ids that cannot be looked up, by what is free to know: on a GPU to look at them is to wait."""
    if ids.dtype not in (torch.int64, torch.int32):  # torch takes uint8 for a mask
        raise InputError(f"{name} must be int64 or int32, got {str(ids.dtype).removeprefix('torch.')}")
    if ids.device.type != "cpu" or not ids.numel() or torch.compiler.is_compiling():
        return
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= words:
        raise InputError(f"{name} must be in [0, {words}), the rows of the table, got {low} to {high}")
