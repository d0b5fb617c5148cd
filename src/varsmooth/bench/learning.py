"""How many steps a model needs to a fixed perplexity, on made-up text of which the best possible one is known."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from varsmooth.bench.workload import Text, Workload
from varsmooth.evaluate import DevelopmentSet
from varsmooth.text.counts import Counts
from varsmooth.text.synthetic import ClassSource

TIMES_THE_BEST = 3.0
"""The perplexity to be reached, in terms of that of the source."""


@dataclass(frozen=True)
class Effort:
    """How much text is made up, and for how many steps a model may learn it, looked at after each ``every``."""

    steps: int = 2_000
    every: int = 20
    tokens: int = 2_000_000
    held_out: int = 20_000


def steps_to_goal(load: Workload, scheme: str, device: torch.device, effort: Effort) -> int | None:
    """Return after how many steps at a constant learning rate ``scheme`` is at the goal on held-out text; None: not in time."""
    source = ClassSource(load.words)
    ids = source.sample(effort.tokens, seed=0)
    config = load.config(scheme, "auto", 1, "train.schedule=constant")
    trainer = load.trainer(config, device, Text(ids.to(device), Counts.from_ids(ids, load.words)))
    held_out = DevelopmentSet(
        trainer.network,
        source.sample(effort.held_out, seed=1),
        eos_id=0,
        predict=config.smoothing.predict,
        batch=load.batch,
        window=load.window,
        burn_in=load.window,
    )
    goal = TIMES_THE_BEST * source.perplexity
    while trainer.progress.step < effort.steps:
        for _ in range(effort.every):
            trainer.step()
        if held_out.perplexity() <= goal:
            trainer.check_finite()
            return trainer.progress.step
    trainer.check_finite()
    return None
