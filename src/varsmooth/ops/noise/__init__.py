"""Data noising, the baseline: words of a window are replaced at random before anything is looked up."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError
from varsmooth.ops.backend import kernels_for
from varsmooth.ops.noise import reference
from varsmooth.ops.places import Places, check_ids
from varsmooth.proposal import Proposal

__all__ = ["noise", "noise_inputs"]


def noise(
    inputs: Tensor, targets: Tensor, proposal: Proposal, key: DrawKey | int, first_sequence: int = 0
) -> tuple[Tensor, Tensor]:
    """Replace inputs [T, B] (and targets, where ``proposal.noises_output``) at random: data noising, the baseline.

    Every position decides alone. Where an input is replaced, Kneser-Ney replaces the label too, by an independent draw.
    ``first_sequence`` is the place of the first column in the global batch.
    """
    if inputs.shape != targets.shape:
        raise InputError(f"inputs and targets must be alike, got {tuple(inputs.shape)} and {tuple(targets.shape)}")
    if not proposal.noises_output:
        return noise_inputs(inputs, proposal, key, first_sequence), targets
    if proposal.silent:
        return inputs, targets
    noised, labels = _noise(inputs, targets, proposal, DrawKey.of(key), first_sequence)
    return noised, cast(Tensor, labels)


def noise_inputs(inputs: Tensor, proposal: Proposal, key: DrawKey | int, first_sequence: int = 0) -> Tensor:
    """Replace inputs [T, B] alone, as sampling at prediction time must: labels are not to be looked at."""
    return inputs if proposal.silent else _noise(inputs, None, proposal, DrawKey.of(key), first_sequence)[0]


def _noise(
    inputs: Tensor, targets: Tensor | None, proposal: Proposal, key: DrawKey, first_sequence: int
) -> tuple[Tensor, Tensor | None]:
    if inputs.dim() != 2:
        raise InputError(f"inputs must be [T, B], got shape {tuple(inputs.shape)}")
    check_ids("inputs", inputs, proposal.vocab_size)
    places = Places(max(1, inputs.shape[1]), first_sequence, by_sequence=True, by_position=True)
    if not kernels_for(inputs):
        return reference.noise(inputs, targets, proposal, key, places)
    from varsmooth.ops.noise import kernel  # late: Triton may be missing where it is not needed

    return kernel.noise(inputs, targets, proposal, key, places)
