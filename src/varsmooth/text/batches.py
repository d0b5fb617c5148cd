"""A stream of ids as windows of parallel columns: non-episodic batches (docs/maths.md, section 7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from varsmooth.errors import InputError


@dataclass(frozen=True)
class Windows:
    """Cuts a stream into ``batch`` columns, read side by side in windows of ``window`` steps.

    The stream is a circle: an epoch starts at an offset and goes round once, so every token is a target at least once per epoch
    and no shape ever changes. The last window of a column may run a few tokens into the next column. Where several processes
    share a batch, each reads only its ``columns`` of it.
    """

    ids: Tensor
    batch: int
    window: int
    columns: range | None = None
    """which of the columns are read; all unless given"""

    def __post_init__(self) -> None:
        tokens = self.ids.numel()
        if self.batch < 1 or self.window < 1:
            raise InputError(f"train.batch and train.window must be at least 1, got {self.batch} and {self.window}")
        if self.batch > tokens:
            raise InputError(f"train.batch = {self.batch} is more than the {tokens} tokens of the training text; lower it")
        if self.window > self.column:
            raise InputError(
                f"train.window = {self.window} is longer than a column of {self.column} tokens "
                f"({tokens} tokens in train.batch = {self.batch} columns); lower train.window or train.batch"
            )

    @property
    def column(self) -> int:
        """Tokens from the start of one column to the start of the next, rounded up."""
        return -(-self.ids.numel() // self.batch)

    @property
    def per_epoch(self) -> int:
        """Windows in one epoch."""
        return -(-self.column // self.window)

    def at(self, index: int, offset: int = 0) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, [window, columns] each, of window ``index`` of an epoch that starts at ``offset``."""
        return self.starting_at(offset + index * self.window)

    def starting_at(self, start: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, [window, columns] each; column 0 of the batch starts at ``start``, a number or 0-d."""
        span = self.ids[(self._places + start) % self.ids.numel()].long()
        return span[:-1], span[1:]

    @cached_property
    def _places(self) -> Tensor:
        """Where the tokens of a window lie that starts at 0, [window + 1, columns]."""
        device = self.ids.device
        columns = self.columns if self.columns is not None else range(self.batch)
        starts = torch.arange(columns.start, columns.stop, device=device) * self.column
        return starts[None, :] + torch.arange(self.window + 1, device=device)[:, None]
