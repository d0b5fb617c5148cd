"""Where rows are drawn: the sequence and the position of each row of a flattened window, described in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from varsmooth.draws import Integers


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
