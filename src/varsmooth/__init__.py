"""Variational smoothing for language models trained on little data."""

from typing import TYPE_CHECKING, Any

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError
from varsmooth.evaluate import LanguageModel, Scales
from varsmooth.ops.noise import noise
from varsmooth.posterior import EmbeddingPosterior, OutputLoss, output_loss
from varsmooth.proposal import Proposal
from varsmooth.text import Corpus, Vocab, open_corpus
from varsmooth.text.counts import Counts
from varsmooth.version import VERSION

if TYPE_CHECKING:
    from varsmooth.dropin import SmoothingHandle, smooth, special_ids_of

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
    "Scales",
    "SmoothingHandle",
    "Vocab",
    "__version__",
    "noise",
    "open_corpus",
    "output_loss",
    "smooth",
    "special_ids_of",
]


def __getattr__(name: str) -> Any:
    """Load the drop-in when it is first asked for: it needs torch's compiler, which doubles the time of an import."""
    if name not in ("SmoothingHandle", "smooth", "special_ids_of"):
        raise AttributeError(f"module 'varsmooth' has no attribute {name!r}")
    from varsmooth import dropin

    return getattr(dropin, name)
