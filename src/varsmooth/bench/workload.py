"""What is measured: a model of some size on made-up text, and the schemes it can be trained with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from varsmooth.config import Config, Engine, Precision, override
from varsmooth.recipe import load_recipe
from varsmooth.text.counts import Counts
from varsmooth.train.build import build_untrained
from varsmooth.train.trainer import Trainer

VANILLA = "vanilla"
WORD = "word KN"
ELEMENT_BATCH = "element KN batch"
ELEMENT_SEQUENCE = "element KN sequence"

# The recipe of each scheme, and what is changed in it; KN is Kneser-Ney.
SCHEMES: dict[str, tuple[str, ...]] = {
    VANILLA: ("vanilla",),
    "noising KN": ("noising-kneser-ney",),
    WORD: ("smoothing-kneser-ney", "smoothing.scope=sequence"),
    ELEMENT_BATCH: ("element-kneser-ney", "smoothing.scope=batch"),
    ELEMENT_SEQUENCE: ("element-kneser-ney", "smoothing.scope=sequence"),
    "interpolation": ("smoothing-linear-interpolation",),
    "blank": ("smoothing-blank",),
}


class Text(NamedTuple):
    ids: Tensor
    counts: Counts


@dataclass(frozen=True)
class Workload:
    """The shape of a training step; the tables are tied, the text is made up."""

    size: int
    words: int
    batch: int = 64
    window: int = 35
    layers: int = 2
    precision: Precision = "bf16"
    tokens: int = 1_000_000

    def config(self, scheme: str, engine: Engine, seed: int = 1, *changes: str) -> Config:
        """Return the configuration that trains ``scheme`` on this workload."""
        recipe, *own = SCHEMES[scheme]
        shape = {
            "model.hidden": self.size,
            "model.layers": self.layers,
            "train.batch": self.batch,
            "train.window": self.window,
            "train.precision": self.precision,
            "train.engine": engine,
            "train.seed": seed,
        }
        return override(load_recipe(recipe), [*own, *(f"{key}={value}" for key, value in shape.items()), *changes])

    def text(self, device: torch.device) -> Text:
        """Return the text, of which all trainers share one copy."""
        return _text(self.words, self.tokens, device)

    def trainer(self, config: Config, device: torch.device, text: Text | None = None) -> Trainer:
        """Return a trainer that stands before its first step; ``text`` is the workload's own unless given."""
        text = text or self.text(device)
        network = build_untrained(config, text.counts)
        return Trainer(network, text.ids, config.train, device)


@lru_cache(maxsize=2)
def _text(words: int, tokens: int, device: torch.device) -> Text:
    ids = zipfian_ids(words, tokens)
    return Text(ids.to(device), Counts.from_ids(ids, words))


def zipfian_ids(words: int, tokens: int, seed: int = 0) -> Tensor:
    """Return independent words, the n-th of them with a probability proportional to 1/n."""
    cumulative = np.cumsum(1 / np.arange(1, words + 1))
    uniform = np.random.default_rng(seed).random(tokens) * cumulative[-1]
    return torch.from_numpy(np.searchsorted(cumulative[:-1], uniform, side="right"))
