"""The factors of dropout, as tensors: what the eager paths multiply by and the kernel must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from varsmooth.draws import DrawKey, Stream, Words, bits_of_rows, coin, coin_threshold, row_words


@dataclass(frozen=True)
class Dropout:
    """Inverted dropout at a rate in [0, 1): what is kept is multiplied by ``scale``."""

    rate: float
    drop_below: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop_below", int(coin_threshold(torch.tensor(self.rate, dtype=torch.float64))))

    @property
    def scale(self) -> float:
        return 1 / (1 - self.rate)

    def factor(self, words: Words, width: int, dtype: torch.dtype) -> Tensor:
        """Return 0 where dropped, else ``scale``, for ``width`` elements of each row."""
        coins = coin(bits_of_rows(words, width, Stream.COIN))
        return (coins >= self.drop_below).to(dtype).mul_(self.scale)


def column_factors(dropout: Dropout, key: DrawKey, matrices: list[Tensor], sequences: Tensor | None = None) -> list[Tensor]:
    """Return what multiplies the columns of all matrices but the first: each [1, width], or [B, width] for B sequences.

    What enters the first matrix are embeddings, which have a dropout of their own.
    """
    device = matrices[0].device
    if sequences is None:
        sequences = torch.zeros(1, dtype=torch.int64, device=device)
    position = torch.arange(1, len(matrices), device=device)[:, None]
    words = row_words(key, torch.zeros_like(sequences), sequences, position)
    return list(dropout.factor(words, matrices[0].shape[-1], matrices[0].dtype))
