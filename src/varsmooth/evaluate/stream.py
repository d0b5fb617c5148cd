"""Perplexity of a stream: state carried, first token predicted from <eos>, every token once (docs/maths.md, section 7)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError, check_choice
from varsmooth.evaluate import output
from varsmooth.evaluate.columns import Columns, Step
from varsmooth.evaluate.precision import full_precision
from varsmooth.evaluate.reading import Evaluation, read
from varsmooth.model import Predict, RecurrentLanguageModel, Tables

Average = Literal["arithmetic", "geometric"]
PredictOrSample = Predict | Literal["sample"]


@torch.inference_mode()
def evaluate(
    network: RecurrentLanguageModel,
    ids: Tensor,
    eos_id: int,
    *,
    predict: PredictOrSample = "mode",
    temperature: float = 1.0,
    batch: int = 1,
    window: int = 128,
    burn_in: int = 64,
    samples: int = 20,
    average: Average = "arithmetic",
    seed: int = 0,
    tables: Tables | None = None,
) -> Evaluation:
    """Return the loss of ``ids``. With ``batch`` 1 the state is carried through the whole stream; with more, the stream is cut
    into so many columns, each of which first reads the ``burn_in`` tokens before it. ``tables`` saves making them again.

    ``sample`` draws the tables ``samples`` times for every window, each draw with its own state; ``arithmetic`` averages the
    probabilities, ``geometric`` the log-likelihoods.
    """
    _check(predict, temperature, average, samples)
    device = network.bias.device
    columns = Columns.cut(ids, eos_id, batch, burn_in, device)
    with full_precision(device):
        if predict == "sample":
            nll = _sampled_nll(network, columns, temperature, window, samples, average, seed)
            return Evaluation(nll / columns.tokens, columns.tokens, predict, temperature, samples, average)
        return read(network, columns, tables or network.tables(predict), predict, window).evaluate(temperature)


@torch.inference_mode()
def best_temperature(
    network: RecurrentLanguageModel,
    ids: Tensor,
    eos_id: int,
    *,
    predict: Predict = "mode",
    batch: int = 1,
    window: int = 128,
    burn_in: int = 64,
    tolerance: float = 1e-3,
) -> float:
    """Return the temperature with the lowest perplexity on ``ids``, which is read once."""
    device = network.bias.device
    columns = Columns.cut(ids, eos_id, batch, burn_in, device)
    with full_precision(device):
        return read(network, columns, network.tables(predict), predict, window).best_temperature(tolerance)


def _sampled_nll(
    network: RecurrentLanguageModel,
    columns: Columns,
    temperature: float,
    window: int,
    samples: int,
    average: Average,
    seed: int,
) -> float:
    """Run every draw through the stream side by side, so that only one window of one draw is held."""
    steps, batch = columns.shape
    window = max(1, min(window, output.LOGIT_BYTES // (4 * batch * network.words)))

    def drawn(sample: int) -> Step:
        return lambda inputs, state, index: network.sampled_logits(inputs, state, DrawKey(seed, index * samples + sample))

    def losses(sample: int) -> Iterator[Tensor]:
        logits = columns.read(drawn(sample), network.initial_state(batch), window)
        for some_logits, targets in zip(logits, torch.split(columns.targets, window), strict=True):
            yield output.target_nll(some_logits.flatten(0, 1).float(), targets.flatten(), temperature)

    found = []
    for of_draws in zip(*(losses(sample) for sample in range(samples)), strict=True):
        nlls = torch.stack(of_draws)
        found.append(nlls.mean(0) if average == "geometric" else math.log(samples) - (-nlls).logsumexp(0))
    return float(columns.in_order(torch.cat(found).view(steps, batch)).sum(dtype=torch.float64))


def _check(predict: str, temperature: float, average: str, samples: int) -> None:
    check_choice("predict", predict, (*get_args(Predict), "sample"))
    check_choice("average", average, get_args(Average))
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be positive and finite, got {temperature}")
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}")
