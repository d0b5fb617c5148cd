"""Perplexity, scores and generated text."""

from varsmooth.evaluate.language_model import LanguageModel, LineScore
from varsmooth.evaluate.stream import Average, Evaluation, PredictOrSample, best_temperature, evaluate

__all__ = ["Average", "Evaluation", "LanguageModel", "LineScore", "PredictOrSample", "best_temperature", "evaluate"]
