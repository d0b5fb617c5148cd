"""Perplexity of a stream: state carried, first token predicted from <eos>, every token once (docs/maths.md, section 7)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from varsmooth.config.sections import MOST_SAMPLES
from varsmooth.errors import InputError, check_choice
from varsmooth.evaluate.columns import Columns
from varsmooth.evaluate.perplexity import Scales, check_scales, check_temperature
from varsmooth.evaluate.precision import full_precision
from varsmooth.evaluate.reading import Evaluation, read
from varsmooth.evaluate.sampling import Average, columns_for, exhausted, sampled
from varsmooth.model import RecurrentLanguageModel, Tables
from varsmooth.posterior import Predict

PredictOrSample = Literal[Predict, "sample"]


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
    scales: Scales | None = None,
) -> Evaluation:
    """Return the loss of ``ids``. With ``batch`` 1 the state is carried through the whole stream; with more, the stream is cut
    into that many columns, each of which first reads the ``burn_in`` tokens before it. ``tables`` saves making them again;
    ``scales`` take the place of a temperature.

    ``sample`` draws the tables ``samples`` times for every window, each draw with its own state, in fewer columns where memory
    asks for it; ``arithmetic`` averages the probabilities, ``geometric`` the log-likelihoods.
    """
    _check(predict, temperature, average, samples, scales)
    device = network.bias.device
    # Of draws there is one for each window, so that a shorter one would be another prediction.
    batch = columns_for(network, batch, window) if predict == "sample" else batch
    columns = Columns.cut(ids, eos_id, batch, burn_in, device)
    with full_precision(device):
        if predict == "sample":
            draws = sampled(network, columns, (average,), temperature=temperature, window=window, samples=samples, seed=seed)
            return exhausted(draws)[0]
        found = read(network, columns, tables or network.tables(predict), predict, window)
        return found.evaluate(temperature) if scales is None else found.scaled(scales)


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


def _check(predict: str, temperature: float, average: str, samples: int, scales: Scales | None) -> None:
    check_choice("predict", predict, get_args(PredictOrSample))
    check_choice("average", average, get_args(Average))
    check_temperature("temperature", temperature)
    check_scales(scales)
    if not 1 <= samples <= MOST_SAMPLES:
        raise InputError(f"samples must be from 1 to {MOST_SAMPLES:,}, got {samples}")
    if scales is not None and temperature != 1:
        raise InputError(f"scales take the place of a temperature; got both, the temperature {temperature:g}")
    if scales is not None and predict == "sample":
        raise InputError("scales go with the predictions mode, mean and mean-input, not with sample")
