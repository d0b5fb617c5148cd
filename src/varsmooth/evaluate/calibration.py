"""Whether a model is right as often as it says: the expected calibration error (docs/maths.md, eq. 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from varsmooth.evaluate import output

BINS = 15


class Judged(NamedTuple):
    """What was predicted for every token [tokens]."""

    nll: Tensor
    confidence: Tensor
    """probability of the most likely word"""
    correct: Tensor
    """1 where that word is the target, else 0"""


@dataclass(frozen=True)
class Calibration:
    """``error`` is the expected calibration error; the other two are means over the tokens."""

    error: float
    accuracy: float
    confidence: float


def judge_each(logits: Tensor, targets: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Return the parts of ``Judged`` [temperatures, 3, n] for logits [n, words]."""
    return torch.stack([judge(logits if each == 1 else logits / each, targets) for each in temperatures])


def judge(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the parts of ``Judged`` [3, n] for logits [n, words]."""
    nll = output.target_nll(logits, targets, temperature=1.0)
    highest, best = logits.max(-1)
    own = logits.gather(-1, targets[:, None])[:, 0]
    # The loss is log sum exp less the target's own logit, so the sum need not be taken again.
    confidence = (highest - own - nll).exp().clamp(max=1.0)
    return torch.stack([nll, confidence, (best == targets).to(nll.dtype)])


def calibration_of(confidence: Tensor, correct: Tensor, bins: int = BINS) -> Calibration:
    """Compare confidence and accuracy in ``bins`` of equal width, each with its upper end."""
    tokens = confidence.numel()
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    sure, right = (figure.double() for figure in (confidence, correct))
    gap = right - sure
    gaps = torch.stack([gap[place == index].sum() for index in range(bins)])
    error, accuracy, mean = torch.stack([gaps.abs().sum(), right.sum(), sure.sum()]).tolist()
    return Calibration(error / tokens, accuracy / tokens, mean / tokens)
