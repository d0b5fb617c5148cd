"""Perplexity, scores and generated text."""

from varsmooth.evaluate.bands import Band, frequency_bands
from varsmooth.evaluate.calibration import Calibration, Judged, calibration_of
from varsmooth.evaluate.development import DevelopmentSet
from varsmooth.evaluate.language_model import LanguageModel, LineScore
from varsmooth.evaluate.perplexity import Scales
from varsmooth.evaluate.reading import Evaluation, Reading
from varsmooth.evaluate.sampling import Average
from varsmooth.evaluate.stream import PredictOrSample, best_temperature, evaluate

__all__ = [
    "Average",
    "Band",
    "Calibration",
    "DevelopmentSet",
    "Evaluation",
    "Judged",
    "LanguageModel",
    "LineScore",
    "PredictOrSample",
    "Reading",
    "Scales",
    "best_temperature",
    "calibration_of",
    "evaluate",
    "frequency_bands",
]
