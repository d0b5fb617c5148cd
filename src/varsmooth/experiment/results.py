"""What a run is judged by: the development set while it trains, both held-out sets when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from varsmooth.config import Config
from varsmooth.evaluate import DevelopmentSet, LanguageModel
from varsmooth.model import Predict, RecurrentLanguageModel
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

    Gives way with None while a GPU reads them.
    """
    splits = {"valid": corpus.valid, "test": corpus.test}
    predicts = predictions(model.network)
    readings = model.read(splits, predicts)
    yield from settled(model.network.bias.device)
    for predict in predicts:
        tuned = readings["valid", predict].best_temperature()
        for split in splits:
            for is_tuned, temperature in ((False, 1.0), (True, tuned)):
                found = readings[split, predict].evaluate(temperature)
                yield {
                    "split": split,
                    "predict": predict,
                    "temperature": temperature,
                    "tuned_temperature": is_tuned,
                    "perplexity": found.perplexity,
                    "nll": found.nll,
                    "tokens": found.tokens,
                    "samples": None,
                    "average": None,
                }


def predictions(network: RecurrentLanguageModel) -> list[Predict]:
    """Return the predictions that differ: the mode, and the means where something was smoothed."""
    if network.smoothing.proposal is None:
        return ["mode"]
    return ["mode", "mean"] if network.smoothing.output == "none" else ["mode", "mean", "mean-input"]
