"""What training minimises (docs/maths.md, eq. 10)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.model import RecurrentLanguageModel, State


class Terms(NamedTuple):
    """The objective of one window and its parts; ``total`` = ``nll`` + lambda * ``kl``."""

    nll: Tensor
    """mean over the batch of the sum over time, in nats"""
    kl: Tensor
    """half the weighted squared norm of the parameters, before lambda"""
    total: Tensor


def objective(
    network: RecurrentLanguageModel, inputs: Tensor, targets: Tensor, state: State, key: DrawKey, l2: float
) -> tuple[Terms, State]:
    """Return the terms for one window [T, B] under one draw, and the recurrent state after it."""
    loss, state = network.loss(inputs, targets, state, key)
    nll, kl = loss.per_token.sum(0).mean(), network.penalty()
    return Terms(nll, kl, nll + l2 * kl), state
