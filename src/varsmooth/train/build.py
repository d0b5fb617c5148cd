"""From a configuration and a corpus to a network: the one place where configuration meets classes."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.config import Config
from varsmooth.errors import InputError
from varsmooth.model import RecurrentLanguageModel, RecurrentStack, Smoothing
from varsmooth.proposal import Proposal
from varsmooth.text.counts import Counts
from varsmooth.train.parallel import local_rank, processes


def build_proposal(config: Config, counts: Counts) -> Proposal | None:
    """Return the proposal that ``smoothing`` asks for; a blank is one row past the words."""
    if config.smoothing.method == "none":
        return None
    return _scheme(config, counts).sparing(counts, config.smoothing.spare_below)


def _scheme(config: Config, counts: Counts) -> Proposal:
    gamma, words = config.smoothing.gamma, counts.vocab_size
    match config.smoothing.scheme:
        case "blank":
            return Proposal.blank(words + 1, gamma, blank_id=words)
        case "linear-interpolation":
            return Proposal.linear_interpolation(counts, gamma)
        case "absolute-discounting":
            return Proposal.absolute_discounting(counts, gamma)
        case "kneser-ney":
            return Proposal.kneser_ney(counts, gamma)


def build_untrained(config: Config, counts: Counts) -> RecurrentLanguageModel:
    """Return the network that training starts from: all that it takes from the text, it takes from the counts."""
    network = build_network(config, counts.vocab_size, build_proposal(config, counts))
    if config.model.bias == "unigram":
        with torch.no_grad():
            network.bias.copy_(unigram_bias(counts))
    return network


def unigram_bias(counts: Counts) -> Tensor:
    """Return the biases that by themselves predict each word as often as it occurs, every word counted once more than that."""
    logarithms = (counts.unigram + 1).double().log()
    # The softmax does not mind a constant, but the penalty does.
    return (logarithms - logarithms.mean()).float()


def build_network(config: Config, words: int, proposal: Proposal | None) -> RecurrentLanguageModel:
    """Return the network with the initial weights of ``train.seed``, whatever the text."""
    smoothing = Smoothing(
        method=config.smoothing.method,
        proposal=proposal,
        granularity=config.smoothing.granularity,
        scope=config.smoothing.scope,
        output=config.smoothing.output if config.smoothing.method == "variational" else "none",
        shared_draw=config.smoothing.method == "variational" and config.smoothing.tie == "shared-draw",
        variance=config.smoothing.variance if config.smoothing.method == "variational" else 0.0,
        kl=config.smoothing.kl,
        dropout=config.dropout.tables,
        dropout_granularity=config.dropout.tables_granularity,
        dropout_kind=config.dropout.kind,
    )
    stack = RecurrentStack(
        config.model.cell,
        config.model.hidden,
        config.model.layers,
        dropout=config.dropout.recurrent,
        dropout_kind=config.dropout.recurrent_kind,
        dropout_scope=config.dropout.recurrent_scope,
        variance=config.dropout.recurrent_variance,
    )
    extra_rows = 0 if proposal is None else proposal.vocab_size - words
    network = RecurrentLanguageModel(words, stack, tied=config.model.tied, smoothing=smoothing, extra_rows=extra_rows)
    network.reset_parameters(torch.Generator().manual_seed(config.train.seed))
    return network


def resolve_device(device: str) -> torch.device:
    """Return the device that ``train.device`` names; ``auto`` takes a GPU where there is one, its own under torchrun."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("the device is to be cuda (train.device, --device), but no GPU is available here; use cpu or auto")
    if not (device == "cuda" or (device == "auto" and torch.cuda.is_available())):
        return torch.device("cpu")
    if processes() == 1:
        return torch.device("cuda")
    place, cards = local_rank(), torch.cuda.device_count()
    if place >= cards:
        raise InputError(
            f"process {place} of this machine has no GPU of its own, there are {cards}; "
            "lower torchrun's --nproc-per-node, or use train.device=cpu"
        )
    return torch.device("cuda", place)
