"""The language model and its recurrent stack."""

from varsmooth.model.network import Method, RecurrentLanguageModel, Smoothing, Tables
from varsmooth.model.recurrent import RecurrentStack
from varsmooth.model.recurrent_run import State

__all__ = ["Method", "RecurrentLanguageModel", "RecurrentStack", "Smoothing", "State", "Tables"]
