"""Streams read side by side by several input tables; on a GPU as one graph that is replayed for every window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from varsmooth.model import RecurrentLanguageModel
from varsmooth.train.captured import Captured


class SideBySide:
    """Inputs [steps, streams], each stream read by each table with a state of its own. Made and used in inference mode.

    Every step of a stream waits for the one before it, so that launching is most of the work. Replayed, it leaves the host to
    other runs of the process, and most of the card too.
    """

    def __init__(self, network: RecurrentLanguageModel, inputs: Tensor, tables: Sequence[Tensor], window: int) -> None:
        self.network, self.tables, self.steps = network, list(tables), len(inputs)
        # Windows of one length, so that one graph serves them all and the last has little padding.
        self.windows = -(-self.steps // window)
        self.window = -(-self.steps // self.windows)
        self.inputs = F.pad(inputs, (0, 0, 0, self.windows * self.window - self.steps))
        columns = inputs.shape[1] * len(tables)
        self.rows = torch.arange(self.window, device=inputs.device)
        self.state = network.initial_state(columns)
        self.hidden = network.bias.new_empty(len(self.inputs), columns, network.stack.width)
        self.advance = Captured(self._advance)

    def read(self) -> Tensor:
        """Return the hidden states [steps, tables * streams, D], without waiting for them."""
        for _ in range(self.windows):
            self.advance()
        return self.hidden[: self.steps]

    def _advance(self) -> None:
        inputs = self.inputs.index_select(0, self.rows)
        vectors = torch.cat([F.embedding(inputs, table) for table in self.tables], dim=1)
        hidden, state = self.network.stack(vectors, self.state, None)
        for kept, fresh in zip(self.state, state, strict=True):
            kept.copy_(fresh)
        self.hidden.index_copy_(0, self.rows, hidden)
        self.rows += self.window
