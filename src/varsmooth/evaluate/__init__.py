"""Perplexity, scores and generated text."""

from varsmooth.evaluate.development import DevelopmentSet
from varsmooth.evaluate.language_model import LanguageModel, LineScore
from varsmooth.evaluate.reading import Evaluation, Reading
from varsmooth.evaluate.stream import Average, PredictOrSample, best_temperature, evaluate

__all__ = [
    "Average",
    "DevelopmentSet",
    "Evaluation",
    "LanguageModel",
    "LineScore",
    "PredictOrSample",
    "Reading",
    "best_temperature",
    "evaluate",
]
