"""Prediction by drawn tables: every draw reads the stream with a state of its own (docs/maths.md, section 6)."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Literal

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.evaluate import output
from varsmooth.evaluate.columns import Columns, Step
from varsmooth.evaluate.precision import full_precision
from varsmooth.evaluate.reading import Evaluation
from varsmooth.model import RecurrentLanguageModel

Average = Literal["arithmetic", "geometric"]


def sampled(
    network: RecurrentLanguageModel,
    columns: Columns,
    averages: tuple[Average, ...],
    *,
    temperature: float,
    window: int,
    samples: int,
    seed: int,
) -> Generator[None, None, list[Evaluation]]:
    """Evaluate ``samples`` draws by each way to average them, giving way after each window of all draws."""
    found: list[list[Tensor]] = []
    windows = _windows(network, columns, temperature, window, samples, seed)
    while True:
        # Left before giving way: others would find themselves in it.
        with torch.inference_mode(), full_precision(network.bias.device):
            nlls = next(windows, None)
            if nlls is None:
                break
            found.append([averaged(nlls, average) for average in averages])
        yield
    evaluations = []
    for average, parts in zip(averages, zip(*found, strict=True), strict=True):
        losses = columns.in_order(torch.cat(parts).view(columns.shape))
        nll = float(losses.sum(dtype=torch.float64)) / columns.tokens
        evaluations.append(Evaluation(nll, columns.tokens, "sample", temperature, samples, average))
    return evaluations


def exhausted(draws: Generator[None, None, list[Evaluation]]) -> list[Evaluation]:
    """Return what ``sampled`` found, without giving way."""
    while True:
        try:
            next(draws)
        except StopIteration as end:
            return list(end.value)


def averaged(nlls: Tensor, average: Average) -> Tensor:
    """Return the loss [n] of a token from those of the draws [samples, n]."""
    return nlls.mean(0) if average == "geometric" else math.log(len(nlls)) - (-nlls).logsumexp(0)


def columns_for(network: RecurrentLanguageModel, wanted: int, window: int) -> int:
    """Return ``wanted`` columns, or fewer where the logits of a whole window would take too much memory."""
    return max(1, min(wanted, output.LOGIT_BYTES // (4 * window * network.words)))


def _windows(
    network: RecurrentLanguageModel, columns: Columns, temperature: float, window: int, samples: int, seed: int
) -> Iterator[Tensor]:
    """Yield the losses [samples, n] of each window: the draws go side by side, so that only one window of one is held."""
    batch = columns.shape[1]

    def drawn(sample: int) -> Step:
        return lambda inputs, state, index: network.sampled_logits(inputs, state, DrawKey(seed, index * samples + sample))

    def losses(sample: int) -> Iterator[Tensor]:
        logits = columns.read(drawn(sample), network.initial_state(batch), window)
        for some_logits, targets in zip(logits, torch.split(columns.targets, window), strict=True):
            yield output.target_nll(some_logits.flatten(0, 1).float(), targets.flatten(), temperature)

    for of_draws in zip(*(losses(sample) for sample in range(samples)), strict=True):
        yield torch.stack(of_draws)
