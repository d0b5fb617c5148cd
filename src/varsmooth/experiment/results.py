"""What a run is judged by: the development set while it trains, both held-out sets when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from varsmooth.config import Config
from varsmooth.evaluate import DevelopmentSet, Evaluation, LanguageModel, Reading, Scales, calibration_of, frequency_bands
from varsmooth.model import RecurrentLanguageModel
from varsmooth.posterior import Predict
from varsmooth.text import Corpus
from varsmooth.train.lane import settled


def development_set(network: RecurrentLanguageModel, corpus: Corpus, config: Config) -> DevelopmentSet:
    """Return what chooses the best model: the development set, read in columns."""
    return DevelopmentSet(
        network,
        corpus.valid,
        corpus.vocab.eos_id,
        predict=config.smoothing.predict,
        batch=config.evaluate.batch,
        window=config.evaluate.window,
        burn_in=config.evaluate.burn_in,
    )


def final_results(model: LanguageModel, corpus: Corpus) -> Iterator[dict[str, Any] | None]:
    """Evaluate both held-out splits with every prediction the method has, each also at the temperature tuned on valid.

    Each comes with its frequency bands and its calibration; draws are added where ``evaluate.samples`` asks for them. Gives way
    with None while a GPU reads the splits, and between the windows of draws.
    """
    splits = {"valid": corpus.valid, "test": corpus.test}
    device = model.network.bias.device
    counts = torch.bincount(corpus.train, minlength=len(corpus.vocab)).to(device)
    predicts = predictions(model.network)
    readings = model.read(splits, predicts)
    yield from settled(device)
    for predict in predicts:
        tuned = readings["valid", predict].best_temperature()
        scales = readings["valid", predict].best_scales(1 / tuned)
        for split in splits:
            yield from _judged_results(split, readings[split, predict], tuned, scales, counts)
    samples = model.config.evaluate.samples
    if samples and model.network.smoothing.proposal is not None:
        for split, ids in splits.items():
            evaluations = yield from model.sampled(ids, samples)
            yield from (_result(split, found, is_tuned=False) for found in evaluations)


def _judged_results(split: str, reading: Reading, tuned: float, scales: Scales, counts: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the results at temperature 1 and at the tuned one, with bands and calibration, from one pass over the logits.

    The second also has what the scales of context and bias that are best on valid give, as a further control.
    """
    targets, temperatures = reading.targets(), (1.0, tuned)
    each, scaled = reading.judged_and_scaled(temperatures, scales)
    for is_tuned, temperature, judged in zip((False, True), temperatures, each, strict=True):
        nll = float(judged.nll.sum(dtype=torch.float64)) / len(targets)
        found = _result(split, Evaluation(nll, len(targets), reading.predict, temperature), is_tuned)
        bands = [asdict(band) for band in frequency_bands(judged.nll, targets, counts)]
        control = {"scaled": {**scales._asdict(), "perplexity": scaled.perplexity}} if is_tuned else {}
        yield {**found, **control, "bands": bands, "calibration": asdict(calibration_of(judged.confidence, judged.correct))}


def _result(split: str, found: Evaluation, is_tuned: bool) -> dict[str, Any]:
    return {
        "split": split,
        "predict": found.predict,
        "temperature": found.temperature,
        "tuned_temperature": is_tuned,
        "perplexity": found.perplexity,
        "nll": found.nll,
        "tokens": found.tokens,
        "samples": found.samples,
        "average": found.average,
    }


def predictions(network: RecurrentLanguageModel) -> list[Predict]:
    """Return the predictions that differ: the mode, and the means where something was smoothed."""
    if network.smoothing.proposal is None:
        return ["mode"]
    return ["mode", "mean"] if network.smoothing.output == "none" else ["mode", "mean", "mean-input"]
