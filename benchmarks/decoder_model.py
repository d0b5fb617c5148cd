"""The decoder of decoder.py: GPT-2's layers at a small size, with one table for input and output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a feed-forward layer, each with its norm before it and dropout after it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all_three, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, given: Tensor) -> Tensor:
        batch, time, width = given.shape
        parts = self.all_three(self.norm_attention(given)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        given = given + self._dropped(self.mix(mixed.transpose(1, 2).reshape(batch, time, width)))
        return given + self._dropped(self.narrow(F.gelu(self.widen(self.norm_forward(given)), approximate="tanh")))

    def _dropped(self, vectors: Tensor) -> Tensor:
        return F.dropout(vectors, self.dropout, self.training)


class Decoder(nn.Module):
    """Predicts the next word from at most ``window`` words."""

    def __init__(self, words: int, width: int, layers: int, heads: int, window: int, dropout: float) -> None:
        super().__init__()
        self.window, self.dropout = window, dropout
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.empty(window, width))
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                ends_block = name.endswith(("mix.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=0.02 * ((2 * layers) ** -0.5 if ends_block else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return what the head scores words by, [batch, time, width]."""
        vectors = F.dropout(self.words(ids) + self.places[: ids.shape[1]], self.dropout, self.training)
        for block in self.blocks:
            vectors = block(vectors)
        return self.norm(vectors)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hidden(ids))
