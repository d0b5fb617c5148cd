"""The configuration of our language model as transformers stores it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from varsmooth.errors import InputError, check_choice

CELLS = ("lstm", "gru")


class VarsmoothConfig(PreTrainedConfig):
    """An LSTM or GRU language model; ``logit_temperature`` divides the logits, so that 1 leaves them as they are."""

    model_type = "varsmooth"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 10_000
    hidden_size: int = 512
    num_hidden_layers: int = 2
    cell: str = "lstm"
    logit_temperature: float = 1.0
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_choice("cell", self.cell, CELLS)
        for name in ("vocab_size", "hidden_size", "num_hidden_layers"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.logit_temperature < math.inf:
            raise InputError(f"logit_temperature must be positive and finite, got {self.logit_temperature}")
