"""Variational smoothing for language models trained on little data."""

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError
from varsmooth.posterior import EmbeddingPosterior, OutputLoss, output_loss
from varsmooth.proposal import Proposal, noise
from varsmooth.text.counts import Counts

__version__ = "0.1.0"
__all__ = ["Counts", "DrawKey", "EmbeddingPosterior", "InputError", "OutputLoss", "Proposal", "noise", "output_loss"]
