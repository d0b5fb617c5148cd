"""A figure over seeds: its mean and its spread, and how many of the seeds it is of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, and their sample standard deviation where there are at least two."""

    mean: float
    deviation: float | None
    seeds: int


def spread(values: Iterable[tuple[int, float]]) -> Spread | None:
    """Return mean and spread of (seed, value) pairs; runs of one seed are averaged first, since they are no fresh evidence."""
    by_seed: dict[int, list[float]] = {}
    for seed, value in values:
        by_seed.setdefault(seed, []).append(value)
    if not by_seed:
        return None
    means = [statistics.fmean(group) for group in by_seed.values()]
    known = len(means) > 1 and all(map(math.isfinite, means))
    return Spread(statistics.fmean(means), statistics.stdev(means) if known else None, len(means))


def shown_spread(item: Spread | None, seeds: int, decimals: int = 2) -> str:
    """Return ``95.14 ±0.31``, saying so where not every one of the seeds has the figure; nothing where none has."""
    if item is None:
        return ""
    deviation = "" if item.deviation is None else f" ±{item.deviation:.{decimals}f}"
    missing = "" if item.seeds == seeds else f" ({item.seeds} of {seeds})"
    return f"{item.mean:,.{decimals}f}{deviation}{missing}"
