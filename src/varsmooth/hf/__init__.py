"""At home in the Hugging Face ecosystem; needs the ``hf`` extra."""

from varsmooth.errors import InputError

try:
    import transformers  # noqa: F401
except ImportError:
    raise InputError("varsmooth.hf needs transformers: pip install 'varsmooth[hf]'") from None

from varsmooth.hf.trainer import SmoothingCallback, SmoothingMixin, SmoothingTrainer

__all__ = ["SmoothingCallback", "SmoothingMixin", "SmoothingTrainer"]
