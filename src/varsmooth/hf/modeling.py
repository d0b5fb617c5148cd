"""Our language model as one of transformers: plain modules around the tables that predict, and ``generate``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from varsmooth.errors import InputError
from varsmooth.evaluate import LanguageModel
from varsmooth.hf.configuration import VarsmoothConfig
from varsmooth.hf.state import RecurrentState, State
from varsmooth.hf.weights import configuration, generation, weights
from varsmooth.posterior import Predict

RNNS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class VarsmoothForCausalLM(PreTrainedModel, GenerationMixin):
    """An embedding, recurrent layers and a head with a bias; ``generate`` carries the recurrent state from word to word."""

    config: VarsmoothConfig
    config_class = VarsmoothConfig
    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # noqa: RUF012  # so in every model of transformers
    # A state cannot be taken back by some words, as assisted generation would need.
    _is_stateful = True

    def __init__(self, config: VarsmoothConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.rnn = RNNS[config.cell](width, width, config.num_hidden_layers, batch_first=True)
        self.lm_head = nn.Linear(width, config.vocab_size)
        self.post_init()

    @classmethod
    def from_language_model(
        cls, model: LanguageModel, predict: Predict | None = None, temperature: float = 1.0, **options: Any
    ) -> Self:
        """Return a model that predicts as ``model`` does: with the tables of ``predict``, its logits over ``temperature``."""
        chosen = predict or model.predict
        settings = configuration(model, chosen, temperature)
        found = super().from_pretrained(None, config=settings, state_dict=weights(model, chosen), **options)
        _loaded(found).generation_config = generation(model)
        return found

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> Self:
        """Load an exported folder, a name on the hub, or a run's folder as it is, by the recipe's own prediction."""
        place = pretrained_model_name_or_path
        if isinstance(place, str | Path) and (Path(place) / "config.toml").is_file():
            options.pop("config", None)
            return cls.from_language_model(LanguageModel.load(place), **options)
        found = super().from_pretrained(place, *args, **options)
        _loaded(found)
        return found

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentState | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits [batch, time, words], the state after the words, and with ``labels`` the mean loss.

        Labels are the ids themselves and shifted here, as in every model of transformers; -100 is left out. Where
        ``attention_mask`` is 0 a word is not read: the state stays as it was.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either input_ids or inputs_embeds")
        vectors = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        hidden, tensors = self._read(vectors, self._state(vectors, past_key_values), attention_mask)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        # torch hands out a transposed view, on which a linear layer is slower and rounds otherwise.
        logits = self.lm_head(hidden[:, kept].contiguous())
        if self.config.logit_temperature != 1:
            logits = logits / self.config.logit_temperature
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache:
            past_key_values = RecurrentState() if past_key_values is None else past_key_values
            past_key_values.advance(tensors, vectors.shape[1])
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values if use_cache else None)

    def _state(self, vectors: Tensor, past: RecurrentState | None) -> State:
        if past is not None and not isinstance(past, RecurrentState):
            raise InputError(f"past_key_values must be a RecurrentState that this model returned, got {type(past).__name__}")
        if past is None or past.tensors is None:
            zeros = vectors.new_zeros(self.config.num_hidden_layers, len(vectors), self.config.hidden_size)
            return (zeros, zeros) if self.config.cell == "lstm" else (zeros,)
        if past.batch_size != len(vectors):
            raise InputError(f"past_key_values holds {past.batch_size} texts, the batch {len(vectors)}")
        return past.tensors

    def _read(self, vectors: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
        """Return hidden states [batch, time, width] and the state after them."""
        time = vectors.shape[1]
        if mask is not None:
            if mask.dim() != 2 or len(mask) != len(vectors) or mask.shape[1] < time:
                raise InputError(f"attention_mask must be [{len(vectors)}, {time}], got {tuple(mask.shape)}")
            mask = mask[:, mask.shape[1] - time :].bool()  # of the words that are given, not of those already read
        if mask is None or bool(mask.all()):
            return self._run(vectors, state)
        parts = []
        for start, end in _stretches(mask):
            part, after = self._run(vectors[:, start:end], state)
            is_read = mask[:, start, None]
            state = tuple(torch.where(is_read, new, old.to(new.dtype)) for new, old in zip(after, state, strict=True))
            parts.append(part)
        return torch.cat(parts, dim=1), state

    def _run(self, vectors: Tensor, state: State) -> tuple[Tensor, State]:
        if self.config.cell == "lstm":
            return self.rnn(vectors, state)  # type: ignore[no-any-return]
        hidden, final = self.rnn(vectors, state[0])
        return hidden, (final,)

    def _init_weights(self, module: nn.Module) -> None:
        """Draw what no file brought as a run draws it: uniformly, biases 0 and the forget gate's 1."""
        bound = self.config.hidden_size**-0.5
        if isinstance(module, nn.Embedding | nn.Linear):
            init.uniform_(module.weight, -bound, bound)
            if isinstance(module, nn.Linear):
                init.zeros_(module.bias)
        elif isinstance(module, nn.LSTM | nn.GRU):
            for name, parameter in module.named_parameters():
                if name.startswith("weight"):
                    init.uniform_(parameter, -bound, bound)
                else:
                    init.copy_(parameter, self._first_bias(parameter, is_ours=name.startswith("bias_ih")))

    def _first_bias(self, like: Tensor, *, is_ours: bool) -> Tensor:
        """Return zeros; in the first of torch's two biases, the one that a run has, the LSTM's forget gate starts at 1."""
        bias, width = torch.zeros_like(like), self.config.hidden_size
        if is_ours and self.config.cell == "lstm":
            bias[width : 2 * width] = 1
        return bias

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: ``forward`` makes the state itself, and ``generate`` hands it on."""
        return False


def _loaded(found: Any) -> VarsmoothForCausalLM:
    """Return the model of what ``from_pretrained`` gave, which may come with information on its loading, ready for use."""
    model: VarsmoothForCausalLM = found[0] if isinstance(found, tuple) else found
    # cuDNN wants its weights side by side, and they were loaded one by one; on a CPU this does nothing.
    model.rnn.flatten_parameters()
    return model


def _stretches(mask: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the stretches of time [start, end) in which every row is either read or not."""
    changes = (mask[:, 1:] != mask[:, :-1]).any(0).nonzero()[:, 0] + 1
    edges = [0, *changes.tolist(), mask.shape[1]]
    yield from pairwise(edges)
