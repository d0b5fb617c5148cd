"""Smooth a model in your own training loop: a small causal transformer on the docstrings of the standard library.

python examples/own_loop.py --steps 300
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varsmooth import Counts, InputError, Proposal, open_corpus, smooth


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, window: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.places = nn.Parameter(torch.zeros(window, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.body(self.words(ids) + self.places[: ids.shape[1]], mask=mask, is_causal=True))


def windows(ids: Tensor, batch: int, window: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(ids) - window, (batch,), generator=generator)
    rows = torch.stack([ids[start : start + window + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def perplexity(model: nn.Module, ids: Tensor, window: int) -> float:
    model.eval()
    rows = ids[: (len(ids) - 1) // window * window + 1]
    inputs, targets = rows[:-1].view(-1, window), rows[1:].view(-1, window)
    pairs = zip(inputs.split(16), targets.split(16), strict=True)
    total = sum(F.cross_entropy(model(i).flatten(0, 1), t.flatten(), reduction="sum").item() for i, t in pairs)
    model.train()
    return math.exp(total / targets.numel())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="python")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    batch, window, penalty = 16, 32, 1e-4

    corpus = open_corpus(options.data)
    train, valid = (torch.as_tensor(ids).long() for ids in (corpus.train, corpus.valid))
    words = len(corpus.vocab)
    torch.manual_seed(1)
    model = Decoder(words, options.width, window)
    proposal = Proposal.kneser_ney(Counts.from_ids(train, words), gamma=0.2)
    handle = smooth(model, proposal)

    # No weight decay: handle.kl() stands in its place on the tables.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, options.steps + 1):
        inputs, targets = windows(train, batch, window, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) + penalty / window * handle.kl()
        loss.backward()
        optimizer.step()  # the draws of the next forward pass are new
        optimizer.zero_grad()
        if step % 50 == 0 or step == options.steps:
            print(f"step {step}: loss {loss.item():.3f}, perplexity of the mean {perplexity(model, valid[:8000], window):.1f}")

    handle.fold()  # a plain model from here on, which predicts with the mean


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"own_loop: {error}", file=sys.stderr)
        sys.exit(2)
