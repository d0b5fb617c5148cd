"""From a run's model to the configuration and the weights of ``VarsmoothForCausalLM``."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GenerationConfig

from varsmooth.evaluate import LanguageModel
from varsmooth.hf.configuration import VarsmoothConfig
from varsmooth.posterior import Predict


def configuration(model: LanguageModel, predict: Predict, temperature: float = 1.0) -> VarsmoothConfig:
    eos = model.vocab.eos_id
    return VarsmoothConfig(
        vocab_size=len(model.vocab),
        hidden_size=model.network.stack.width,
        num_hidden_layers=model.network.stack.layers,
        cell=model.network.stack.cell,
        logit_temperature=temperature,
        bos_token_id=eos,
        eos_token_id=eos,
        pad_token_id=eos,
        tie_word_embeddings=_is_tied(model, predict),
        architectures=["VarsmoothForCausalLM"],
        dtype="float32",
    )


def generation(model: LanguageModel) -> GenerationConfig:
    """Return how text is written: to the end of the line, and ``<unk>`` never, as ``LanguageModel.generate`` does."""
    eos, unk = model.vocab.eos_id, model.vocab.unk_id
    return GenerationConfig(
        bos_token_id=eos, eos_token_id=eos, pad_token_id=eos, suppress_tokens=None if unk is None else [unk]
    )


@torch.no_grad()
def weights(model: LanguageModel, predict: Predict) -> dict[str, Tensor]:
    """Return the tables that predict, and the recurrent layers in torch's own names; a tied head is left out.

    A blank row goes: it is never a target, and nobody can write it as an input.
    """
    tables, stack, words = model.network.tables(predict), model.network.stack, len(model.vocab)
    found = {"embed_tokens.weight": tables.input[:words], "lm_head.bias": model.network.bias}
    if not _is_tied(model, predict):
        found["lm_head.weight"] = tables.output[:words]
    for layer in range(stack.layers):
        found[f"rnn.weight_ih_l{layer}"] = stack.weight_ih[layer]
        found[f"rnn.weight_hh_l{layer}"] = stack.weight_hh[layer]
        found[f"rnn.bias_ih_l{layer}"] = stack.bias[layer]
        found[f"rnn.bias_hh_l{layer}"] = stack.zero_bias
    return {name: tensor.detach().clone().contiguous().cpu() for name, tensor in found.items()}


def _is_tied(model: LanguageModel, predict: Predict) -> bool:
    """Whether one table serves at both ends: where only one end was smoothed, their means differ."""
    network = model.network
    if network.own_output_table is not None:
        return False
    with torch.no_grad():
        tables = network.tables(predict)
        return tables.input is tables.output or torch.equal(tables.input, tables.output)
