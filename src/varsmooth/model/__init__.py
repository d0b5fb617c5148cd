"""The language model and its recurrent stack."""

from varsmooth.model.network import Method, Predict, RecurrentLanguageModel, Smoothing, Tables
from varsmooth.model.recurrent import RecurrentStack
from varsmooth.model.recurrent_run import State

__all__ = ["Method", "Predict", "RecurrentLanguageModel", "RecurrentStack", "Smoothing", "State", "Tables"]
