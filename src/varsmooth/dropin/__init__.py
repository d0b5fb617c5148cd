"""Smoothing for a model that is already there: its tables are drawn while it trains, and nothing of it is changed."""

from varsmooth.dropin.handle import SmoothingHandle, smooth
from varsmooth.dropin.vocabulary import special_ids_of

__all__ = ["SmoothingHandle", "smooth", "special_ids_of"]
