"""The recurrent state as a cache: all that generation needs to remember, however long the text."""

from __future__ import annotations

from typing import NoReturn, TypeAlias

import torch
from torch import Tensor
from transformers import Cache

from varsmooth.errors import InputError

State: TypeAlias = tuple[Tensor, ...]
"""(h, c) of an LSTM, (h,) of a GRU, each [layers, batch, width]."""


class RecurrentState(Cache):
    """The state after ``seen`` words of each text in a batch."""

    def __init__(self, tensors: State | None = None, seen: int = 0) -> None:
        super().__init__(layers=[])
        self.tensors, self.seen = tensors, seen

    def __repr__(self) -> str:
        return f"RecurrentState(seen={self.seen}, batch={self.batch_size})"

    def __len__(self) -> int:
        return 0 if self.tensors is None else len(self.tensors[0])

    def advance(self, tensors: State, words: int) -> None:
        """Take the state after ``words`` further words."""
        self.tensors, self.seen = tensors, self.seen + words

    def get_seq_length(self, layer_idx: int = 0) -> int:
        del layer_idx
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1: there is no limit."""
        del layer_idx
        return -1

    def reset(self) -> None:
        self.tensors, self.seen = None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams that were kept."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.tensors is not None:
            self.tensors = tuple(part.index_select(1, indices.to(part.device)) for part in self.tensors)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.tensors is not None:
            self.tensors = tuple(torch.repeat_interleave(part, repeats, dim=1) for part in self.tensors)

    def crop(self, tokens_to_remove: int) -> NoReturn:
        raise InputError(f"a recurrent state cannot forget its last {abs(tokens_to_remove)} words; read the text again")

    @property
    def batch_size(self) -> int:
        return -1 if self.tensors is None else self.tensors[0].shape[1]

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.tensors is not None

    @property
    def is_croppable(self) -> bool:
        return False
