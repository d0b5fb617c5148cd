"""Test perplexity by how often the target was seen in training, at the temperature tuned on valid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from varsmooth.evaluate.bands import BOUNDS, Band
from varsmooth.experiment.seeds import Spread
from varsmooth.report.runs import RunSummary
from varsmooth.reproduce.markdown import NOT_RUN, Cells, PagePart, records_table, shown
from varsmooth.reproduce.records import over_seeds
from varsmooth.train.record import result_of


def bands_part(runs: Sequence[RunSummary], rows: Sequence[Cells]) -> PagePart:
    """Return a table of ``rows`` below the bands of these runs and their shares of the tokens."""
    bands = next((found for run in runs if (found := _bands(run))), [])
    if not bands:
        return NOT_RUN
    tokens = sum(band["tokens"] for band in bands)
    shares = ["share of the tokens", *(f"{band['tokens'] / tokens:.1%}" for band in bands)]
    return records_table(["training count of the target", *map(_name, bands)], [shares, *rows])


def band_figures(runs: Sequence[RunSummary], predict: str | None = None) -> list[Spread | None]:
    """Return the perplexity of each band over seeds, by the runs' own prediction unless another is given."""
    return [over_seeds(runs, partial(_perplexity, index=index, predict=predict)) for index in range(len(BOUNDS))]


def relative(plain: Spread | None, other: Spread | None) -> str:
    """Return by how much a perplexity is above another, in percent."""
    return shown(None) if plain is None or other is None else f"{other.mean / plain.mean - 1:+.1%}"


def _bands(run: RunSummary, predict: str | None = None) -> list[dict[str, Any]]:
    return (result_of(run.record, "test", predict, tuned=True) or {}).get("bands") or []


def _perplexity(run: RunSummary, index: int, predict: str | None) -> float | None:
    bands = _bands(run, predict)
    if index >= len(bands):
        return None
    # JSON has nothing else for a loss beyond all numbers.
    return math.inf if bands[index]["nll"] is None else Band(**bands[index]).perplexity


def _name(band: dict[str, Any]) -> str:
    low, high = band["low"], band["high"]
    return f"{low:,} or more" if high is None else str(low) if low == high else f"{low}-{high}"
