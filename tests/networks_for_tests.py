"""Tiny networks, configurations and corpora, so that a test takes milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from varsmooth import Corpus, Counts, Proposal
from varsmooth.config import Config, override
from varsmooth.model import RecurrentLanguageModel, RecurrentStack, Smoothing
from varsmooth.recipe import load_recipe
from varsmooth.text.synthetic import MarkovSource, synthetic_corpus
from varsmooth.train.build import build_network, build_proposal
from varsmooth.train.trainer import Trainer

WORDS, WIDTH = 23, 6
TINY = (
    "data.name=synthetic",
    "model.hidden=8",
    "train.batch=4",
    "train.window=5",
    "train.steps=8",
    "train.device=cpu",
    "evaluate.batch=3",
    "evaluate.window=16",
    "evaluate.burn_in=4",
)


def some_counts(words: int = WORDS) -> Counts:
    """Counts of a random text in which the last word never occurs."""
    return Counts.from_ids(torch.randint(words - 1, (300,), generator=torch.Generator().manual_seed(1)), words)


def some_proposal(scheme: str = "kneser-ney", gamma: float = 0.6) -> Proposal:
    if scheme == "blank":
        return Proposal.blank(WORDS + 1, gamma, blank_id=WORDS)
    return {
        "kneser-ney": Proposal.kneser_ney,
        "absolute-discounting": Proposal.absolute_discounting,
        "linear-interpolation": Proposal.linear_interpolation,
    }[scheme](some_counts(), gamma)


def some_network(
    scheme: str = "kneser-ney",
    method: str = "variational",
    gamma: float = 0.6,
    *,
    tied: bool = True,
    cell: str = "lstm",
    recurrent_dropout: float = 0.2,
    **smoothing: Any,
) -> RecurrentLanguageModel:
    """A network with random weights, its bias included, so that nothing is zero by chance."""
    proposal = None if method == "none" else some_proposal(scheme, gamma)
    stack = RecurrentStack(cell, WIDTH, 2, dropout=recurrent_dropout)
    extra_rows = 0 if proposal is None else proposal.vocab_size - WORDS
    drawn = Smoothing(method=method, proposal=proposal, **smoothing)
    network = RecurrentLanguageModel(WORDS, stack, tied=tied, smoothing=drawn, extra_rows=extra_rows)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return network


def some_ids(*shape: int, words: int = WORDS, seed: int = 3) -> Tensor:
    return torch.randint(words, shape, generator=torch.Generator().manual_seed(seed))


def tiny_config(recipe: str = "vanilla", *settings: str) -> Config:
    return override(load_recipe(recipe), [*TINY, *settings])


def tiny_corpus(train: int = 400, source: MarkovSource | None = None) -> Corpus:
    return synthetic_corpus(source or MarkovSource(20, 4), train=train, valid=150, test=150)


def tiny_trainer(config: Config, corpus: Corpus | None = None) -> Trainer:
    corpus = corpus or tiny_corpus()
    proposal = build_proposal(config, Counts.from_ids(corpus.train, len(corpus.vocab)))
    return Trainer(build_network(config, len(corpus.vocab), proposal), corpus.train, config.train, torch.device("cpu"))


def penalty(network: RecurrentLanguageModel) -> Tensor:
    """Half the weighted squared norm of all parameters, from the definition."""
    pairs = zip(network.parameters(), network.row_weights(), strict=True)
    squares = [(part.square() if c is None else c[:, None] * part.square()).sum() for part, c in pairs]
    return 0.5 * torch.stack(squares).sum()
