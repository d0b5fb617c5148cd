"""The definition in plain torch, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor

from varsmooth.draws import DrawKey, coin, row_words
from varsmooth.ops.places import Places
from varsmooth.proposal import Proposal


def noise(
    inputs: Tensor, targets: Tensor | None, proposal: Proposal, key: DrawKey, places: Places
) -> tuple[Tensor, Tensor | None]:
    """Replace ``inputs`` at ``places``, and with them ``targets`` where given; the coin is the position's, not the word's."""
    words = row_words(key, inputs.new_zeros(inputs.numel()), *places.coordinates(inputs.numel(), inputs.device))
    coins, input_bits, label_bits, _ = (word.view(inputs.shape) for word in words)
    replaced = coin(coins.int()) < proposal.replace_below[inputs]
    noised = torch.where(replaced, proposal.draw(input_bits), inputs)
    return noised, None if targets is None else torch.where(replaced, proposal.draw(label_bits), targets)
