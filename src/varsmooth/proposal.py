"""What may replace a word, and how often (docs/maths.md, section 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from varsmooth.draws import alias_table, coin_threshold, pick
from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.text.counts import Counts

FORMAT = "varsmooth.proposal.1"
ROUNDING = 2e-7
"""By how much probabilities in single precision may miss 1 without being made to sum to it."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """Word i is replaced with probability ``rate[i]``, by word v with probability ``probs[v]`` (eq. 1).

    ``noises_output`` says whether data noising replaces the label too where it replaced the input. Probabilities whose sum
    misses 1 by no more than 1e-4, because they were rounded to a few digits, are made to sum to it.
    """

    rate: Tensor
    probs: Tensor
    noises_output: bool = False
    silent: bool = field(init=False)
    """True when every rate is 0, so that nothing is ever replaced."""

    def __post_init__(self) -> None:
        for name in ("rate", "probs"):
            _check_probabilities(name, getattr(self, name))
        if self.rate.shape != self.probs.shape:
            raise InputError(f"rate and probs must have one shape, got {self.rate.numel()} and {self.probs.numel()} words")
        object.__setattr__(self, "silent", not bool(self.rate.any()))
        total = float(self.probs.double().sum())
        if not self.silent and abs(total - 1) > 1e-4:
            raise InputError(f"probs must sum to 1, got {total:.6f}")
        if not self.silent and abs(total - 1) > ROUNDING:
            object.__setattr__(self, "probs", (self.probs.double() / total).to(self.probs.dtype))

    @classmethod
    def blank(cls, vocab_size: int, gamma: float, blank_id: int) -> Proposal:
        """Replace any word by the extra row ``blank_id``, which ``vocab_size`` includes and which is itself never replaced."""
        gamma = _checked_gamma(gamma)
        if not 0 <= blank_id < vocab_size:
            raise InputError(f"blank_id must be in [0, vocab_size = {vocab_size}), got {blank_id}")
        is_blank = torch.arange(vocab_size) == blank_id
        return cls(torch.where(is_blank, 0.0, gamma), is_blank.float())

    @classmethod
    def linear_interpolation(cls, counts: Counts, gamma: float) -> Proposal:
        """Replace every word at one rate, by a word of the unigram distribution."""
        gamma = _checked_gamma(gamma)
        return cls(torch.where(counts.unigram > 0, gamma, 0.0), _share(counts.unigram))

    @classmethod
    def absolute_discounting(cls, counts: Counts, gamma: float) -> Proposal:
        """Replace a word the more often the more varied its continuations, by a word of the unigram distribution."""
        return cls(_discount_rate(counts, gamma), _share(counts.unigram))

    @classmethod
    def kneser_ney(cls, counts: Counts, gamma: float) -> Proposal:
        """As absolute discounting, by a word that follows many distinct words; data noising replaces the label too."""
        return cls(_discount_rate(counts, gamma), _share(counts.distinct_before), noises_output=True)

    def sparing(self, counts: Counts, below: int) -> Proposal:
        """Return the same proposal, but for words that occur fewer than ``below`` times: they are not replaced.

        They still replace others. Rows past the words that were counted, such as a blank's, stay as they are.
        """
        if below < 0:
            raise InputError(f"below must be at least 0, got {below}")
        if counts.vocab_size > self.vocab_size:
            raise InputError(f"counts are of {counts.vocab_size} words, the proposal of {self.vocab_size}")
        rate = self.rate.clone()
        rate[: counts.vocab_size][(counts.unigram < below).to(rate.device)] = 0
        return Proposal(rate, self.probs, self.noises_output)

    @property
    def vocab_size(self) -> int:
        return self.rate.numel()

    def to(self, device: torch.device | str) -> Proposal:
        """Return the same proposal on another device."""
        if self.rate.device == torch.device(device):
            return self
        return Proposal(self.rate.to(device), self.probs.to(device), self.noises_output)

    @cached_property
    def alias_table(self) -> tuple[Tensor, Tensor]:
        """Thresholds and aliases with which ``draws.pick`` draws a word from ``probs``."""
        threshold, alias = alias_table(self.probs.tolist())
        return threshold.to(self.probs.device), alias.to(self.probs.device)

    @cached_property
    def packed_alias_table(self) -> Tensor:
        """The same in one int64 for each slot, the alias above the threshold, so that a kernel reads both at once."""
        threshold, alias = self.alias_table
        return (alias.long() << 32) | (threshold.long() & 0xFFFFFFFF)

    @cached_property
    def replace_below(self) -> Tensor:
        """The threshold (int32) below which each word's coin means that it is replaced."""
        return coin_threshold(self.rate)

    def draw(self, bits: Tensor) -> Tensor:
        """Return a word (int64) drawn from ``probs`` for each 32-bit word."""
        return pick(bits.int(), *self.alias_table).long()

    def save(self, path: Path | str) -> None:
        """Write the proposal as a safetensors file."""
        tensors = {"rate": self.rate.cpu(), "probs": self.probs.cpu()}
        metadata = {"format": FORMAT, "noises_output": str(self.noises_output).lower()}
        write_atomically(Path(path), safetensors.torch.save(tensors, metadata))

    @classmethod
    def load(cls, path: Path | str) -> Proposal:
        """Read a proposal that ``save`` wrote; nothing in the file is executed."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise InputError(f"{path}: not a proposal (format {metadata.get('format')!r}, expected {FORMAT!r})")
                tensors = {name: file.get_tensor(name) for name in ("rate", "probs")}
        except (OSError, safetensors.SafetensorError) as error:
            raise InputError(f"{path}: cannot be read as a proposal: {error}") from None
        return cls(tensors["rate"], tensors["probs"], metadata.get("noises_output") == "true")


def _checked_gamma(gamma: float) -> float:
    if math.isnan(gamma) or not 0 <= gamma <= 1:
        raise InputError(f"gamma must be in [0, 1], got {gamma}")
    return float(gamma)


def _discount_rate(counts: Counts, gamma: float) -> Tensor:
    """gamma * distinct(i, .) / count(i), and 0 for a word that never occurs."""
    if not isinstance(counts, Counts):
        raise InputError(f"counts must be Counts, as Counts.from_ids(ids, vocab_size) makes them; got {type(counts).__name__}")
    gamma = _checked_gamma(gamma)
    return (gamma * counts.distinct_after.double() / counts.unigram.clamp(min=1)).float()


def _share(counts: Tensor) -> Tensor:
    """Return counts as shares of their total; all zero where there is nothing to share."""
    return (counts.double() / counts.sum().clamp(min=1)).float()


def _check_probabilities(name: str, values: Tensor) -> None:
    if values.dim() != 1 or values.numel() == 0 or not values.is_floating_point():
        raise InputError(f"{name} must be a 1-D float tensor, got {values.dtype} of shape {tuple(values.shape)}")
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError(f"{name} must be in [0, 1], got values from {float(values.min())} to {float(values.max())}")
