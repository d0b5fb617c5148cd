"""q, how it is drawn, its mean and its KL; and how a drawn output table enters the loss."""

from varsmooth.posterior.embedding import EmbeddingPosterior, Granularity, Predict, Scope
from varsmooth.posterior.kl import KLForm, kl_weights
from varsmooth.posterior.output import OutputLoss, OutputRule, output_loss

__all__ = [
    "EmbeddingPosterior",
    "Granularity",
    "KLForm",
    "OutputLoss",
    "OutputRule",
    "Predict",
    "Scope",
    "kl_weights",
    "output_loss",
]
