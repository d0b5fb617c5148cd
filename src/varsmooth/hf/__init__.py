"""At home in the Hugging Face ecosystem; needs the ``hf`` extra. Importing it registers our model with the Auto classes."""

from varsmooth.errors import InputError

try:
    import transformers
except ImportError:
    raise InputError("varsmooth.hf needs transformers: pip install 'varsmooth[hf]'") from None

from varsmooth.hf.configuration import VarsmoothConfig
from varsmooth.hf.exporting import Exported, export, quiet
from varsmooth.hf.modeling import VarsmoothForCausalLM
from varsmooth.hf.state import RecurrentState
from varsmooth.hf.tokenizer import RunTokenizer, tokenizer_of
from varsmooth.hf.trainer import SmoothingCallback, SmoothingMixin, SmoothingTrainer

__all__ = [
    "Exported",
    "RecurrentState",
    "SmoothingCallback",
    "SmoothingMixin",
    "SmoothingTrainer",
    "VarsmoothConfig",
    "VarsmoothForCausalLM",
    "export",
    "quiet",
    "tokenizer_of",
]

transformers.AutoConfig.register(VarsmoothConfig.model_type, VarsmoothConfig, exist_ok=True)
transformers.AutoModelForCausalLM.register(VarsmoothConfig, VarsmoothForCausalLM, exist_ok=True)
transformers.AutoTokenizer.register(VarsmoothConfig, fast_tokenizer_class=RunTokenizer, exist_ok=True)
