"""Losses by how often the target was seen in training: where smoothing should help (docs/maths.md, section 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from varsmooth.evaluate.perplexity import perplexity_of

BOUNDS = (0, 1, 10, 100, 1000)
"""The smallest training count of each band; the next band's is where it ends."""


@dataclass(frozen=True)
class Band:
    """The tokens whose targets have a training count from ``low`` to ``high``, None meaning: without end."""

    low: int
    high: int | None
    tokens: int
    nll: float
    """sum over the tokens, in nats, so that the bands of a stream add up to its loss"""

    @property
    def perplexity(self) -> float | None:
        """None where the band is empty."""
        return perplexity_of(self.nll / self.tokens) if self.tokens else None


def frequency_bands(losses: Tensor, targets: Tensor, counts: Tensor) -> list[Band]:
    """Divide losses [tokens] by the training counts [words] of their targets [tokens]."""
    lows = torch.tensor(BOUNDS, device=counts.device)
    band = torch.bucketize(counts[targets], lows, right=True) - 1
    # A sum for each band instead of a scatter, whose order on a GPU is anyone's guess.
    members = [band == index for index in range(len(BOUNDS))]
    figures = torch.stack([torch.stack([part.sum(), losses[part].sum(dtype=torch.float64)]) for part in members]).tolist()
    highs = [*(low - 1 for low in BOUNDS[1:]), None]
    return [Band(low, high, int(tokens), nll) for low, high, (tokens, nll) in zip(BOUNDS, highs, figures, strict=True)]
