"""Variational smoothing for language models trained on little data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from varsmooth.version import VERSION

if TYPE_CHECKING:
    from varsmooth.draws import DrawKey
    from varsmooth.dropin import SmoothingHandle, smooth, special_ids_of
    from varsmooth.errors import InputError
    from varsmooth.evaluate import LanguageModel, Scales
    from varsmooth.ops.noise import noise
    from varsmooth.posterior import EmbeddingPosterior, OutputLoss, output_loss
    from varsmooth.proposal import Proposal
    from varsmooth.text import Corpus, Vocab, open_corpus
    from varsmooth.text.counts import Counts

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

_MODULES = {
    "draws": ["DrawKey"],
    "dropin": ["SmoothingHandle", "smooth", "special_ids_of"],
    "errors": ["InputError"],
    "evaluate": ["LanguageModel", "Scales"],
    "ops.noise": ["noise"],
    "posterior": ["EmbeddingPosterior", "OutputLoss", "output_loss"],
    "proposal": ["Proposal"],
    "text": ["Corpus", "Vocab", "open_corpus"],
    "text.counts": ["Counts"],
}


def __getattr__(name: str) -> Any:
    """Load a public name, or its module, when it is first asked for: torch takes seconds, and the command line begins here."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"varsmooth.{module}"), name)
        if name == module.partition(".")[0]:
            return import_module(f"varsmooth.{name}")
    raise AttributeError(f"module 'varsmooth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
