"""Variational smoothing for language models trained on little data."""

from varsmooth.draws import DrawKey
from varsmooth.dropin import SmoothingHandle, smooth, special_ids_of
from varsmooth.errors import InputError
from varsmooth.evaluate import LanguageModel
from varsmooth.ops.noise import noise
from varsmooth.posterior import EmbeddingPosterior, OutputLoss, output_loss
from varsmooth.proposal import Proposal
from varsmooth.text import Corpus, Vocab, open_corpus
from varsmooth.text.counts import Counts
from varsmooth.version import VERSION

__version__ = VERSION
__all__ = [
    "Corpus",
    "Counts",
    "DrawKey",
    "EmbeddingPosterior",
    "InputError",
    "LanguageModel",
    "OutputLoss",
    "Proposal",
    "SmoothingHandle",
    "Vocab",
    "__version__",
    "noise",
    "open_corpus",
    "output_loss",
    "smooth",
    "special_ids_of",
]
