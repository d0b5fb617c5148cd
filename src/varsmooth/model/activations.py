"""Ordinary dropout: of what a layer gives, afresh at every position of every sequence (docs/maths.md, section 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.draws import DrawKey, row_words
from varsmooth.ops.draw_matrices import Dropout


def dropped(activations: Tensor, dropout: Dropout, key: DrawKey, first_sequence: int = 0) -> Tensor:
    """Return ``activations`` [T, B, D] with single elements dropped, each by its position, sequence and dimension."""
    steps, batch, width = activations.shape
    device = activations.device
    sequence = torch.arange(first_sequence, first_sequence + batch, device=device)
    position = torch.arange(steps, device=device)[:, None]
    words = row_words(key, torch.zeros_like(sequence), sequence, position)
    return activations * dropout.factor(words, width, activations.dtype)
