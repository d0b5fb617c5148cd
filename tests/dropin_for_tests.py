"""Tiny models of the kinds that people bring."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from varsmooth import Counts, Proposal

WORDS, WIDTH, BATCH, TIME = 29, 8, 4, 6


def proposal(words: int = WORDS, gamma: float = 0.5) -> Proposal:
    """A Kneser-Ney proposal with high rates, so that few words stay what they are."""
    ids = torch.randint(words, (40 * words,), generator=torch.Generator().manual_seed(5))
    counts = Counts.from_ids(torch.cat([torch.arange(words), ids]), words)
    rate = Proposal.kneser_ney(counts, gamma=1.0).rate
    return Proposal(rate / rate.max() * gamma, Proposal.kneser_ney(counts, gamma=1.0).probs, noises_output=True)


def ids(batch: int = BATCH, time: int = TIME, seed: int = 0, words: int = WORDS) -> Tensor:
    return torch.randint(words, (batch, time), generator=torch.Generator().manual_seed(seed))


class RecurrentModel(nn.Module):
    """An embedding, a GRU and a head; ids are [batch, time] or [time, batch]."""

    def __init__(self, *, tied: bool = True, batch_first: bool = True, bias: bool = True, rows: int = WORDS) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, WIDTH)
        self.body = nn.GRU(WIDTH, WIDTH, batch_first=batch_first)
        self.head = nn.Linear(WIDTH, rows, bias=bias)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.body(self.words(given))[0])


def recurrent(seed: int = 1, **options: bool | int) -> RecurrentModel:
    torch.manual_seed(seed)
    return RecurrentModel(**options)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
