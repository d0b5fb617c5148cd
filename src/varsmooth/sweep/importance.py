"""Which parameters of a search mattered: how much of the spread of perplexities the values of each tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from varsmooth.sweep.space import Choice, Dimension, Space

QUARTERS = 4
"""Into how many parts a range is cut where trials may lie anywhere in it, or nearly so."""


def importance(space: Space, trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return for each parameter its share of the variance of log perplexity, the largest first.

    Not Optuna's: by default that compares the best tenth of the trials with the rest, which of some dozens is a trial or two.
    """
    losses = [math.log(perplexity) for _, perplexity in trials]
    shares = {key: share([_group(found, params[key]) for params, _ in trials], losses) for key, found in space.items()}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def share(groups: Sequence[Any], values: Sequence[float]) -> float:
    """Return which share of the variance of ``values`` lies between ``groups``, less what chance gives (epsilon squared)."""
    mean = fmean(values)
    members = {group: [value for own, value in zip(groups, values, strict=True) if own == group] for group in groups}
    total = sum((value - mean) ** 2 for value in values)
    between = sum(len(own) * (fmean(own) - mean) ** 2 for own in members.values())
    by_chance, left = len(members) - 1, len(values) - len(members)
    if total == 0 or left == 0:  # nothing to tell apart, or as many groups as values, which tell all apart
        return 0.0
    return max(0.0, (between - by_chance * (total - between) / left) / total)


def _group(dimension: Dimension, value: Any) -> Any:
    """Return which values count as one: equal ones, or those of the same quarter of a range."""
    if isinstance(dimension, Choice) or (dimension.step is not None and len(dimension.values()) <= QUARTERS):
        return value
    scale = math.log if dimension.log else float
    part = (scale(value) - scale(dimension.low)) / (scale(dimension.high) - scale(dimension.low))
    return min(int(QUARTERS * part), QUARTERS - 1)
