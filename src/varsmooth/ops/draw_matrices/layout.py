"""Where cuDNN wants each weight of a recurrent stack within its one flat buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

LSTM_MODE, GRU_MODE = 2, 3
"""The numbers of cuDNN's cudnnRNNMode_t."""


@dataclass(frozen=True)
class FlatLayout:
    """``offsets``, in elements, of ih_0, hh_0, ih_1, ..., then of two biases per layer, in a buffer of ``size`` elements."""

    rows: int
    width: int
    offsets: tuple[int, ...]
    size: int

    @property
    def layers(self) -> int:
        return len(self.offsets) // 4

    def views(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the matrices and the biases, as parts of ``flat``."""
        matrices = 2 * self.layers
        return (
            [flat.as_strided((self.rows, self.width), (self.width, 1), offset) for offset in self.offsets[:matrices]],
            [flat.as_strided((self.rows,), (1,), offset) for offset in self.offsets[matrices:]],
        )

    def buffer(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a new buffer; gaps between the parts, if there are any, are zeros, as cuDNN's own compaction leaves them."""
        packed = self.size == 2 * self.layers * self.rows * (self.width + 1)
        return (torch.empty if packed else torch.zeros)(self.size, device=device, dtype=dtype)


def flat_layout(rows: int, width: int, layers: int, device: torch.device, dtype: torch.dtype) -> FlatLayout:
    """Return cuDNN's layout where it will run, else one part after another."""
    if device.type == "cuda" and torch.backends.cudnn.enabled and torch._use_cudnn_rnn_flatten_weight():
        return _cudnn_layout(rows, width, layers, device, dtype)
    return packed_layout(rows, width, layers)


@cache
def packed_layout(rows: int, width: int, layers: int) -> FlatLayout:
    """Return all matrices one after another, then all biases."""
    matrices = [number * rows * width for number in range(2 * layers)]
    biases = [2 * layers * rows * width + number * rows for number in range(2 * layers)]
    return FlatLayout(rows, width, (*matrices, *biases), 2 * layers * rows * (width + 1))


@cache
@torch.no_grad()
def _cudnn_layout(rows: int, width: int, layers: int, device: torch.device, dtype: torch.dtype) -> FlatLayout:
    """Ask cuDNN, once per shape: it moves dummy weights into a buffer, and tells by that where each belongs."""
    shapes = [(rows, width), (rows, width), (rows,), (rows,)] * layers
    parts = [torch.empty(shape, device=device, dtype=dtype) for shape in shapes]
    mode = LSTM_MODE if rows == 4 * width else GRU_MODE
    with torch.cuda.device(device):
        flat = torch._cudnn_rnn_flatten_weight(parts, 4, width, mode, width, 0, layers, False, False)
    places = [int(part.storage_offset()) for part in parts]
    matrices = [offset for layer in range(layers) for offset in places[4 * layer : 4 * layer + 2]]
    biases = [offset for layer in range(layers) for offset in places[4 * layer + 2 : 4 * layer + 4]]
    return FlatLayout(rows, width, (*matrices, *biases), flat.numel())
