"""Time to a fixed perplexity: the steps that runs needed, at what a step costs a model that has the card to itself.

A run's own clock will not do: in a fleet it also counts the others' turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from varsmooth.bench.targets import STEP
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, VANILLA, WORD
from varsmooth.report.runs import RunSummary
from varsmooth.reproduce.cost import Cost
from varsmooth.reproduce.markdown import NOTHING, shown
from varsmooth.reproduce.records import over_seeds


def steps_shown(runs: Sequence[RunSummary], goal: float, costs: Sequence[Cost] = ()) -> str:
    """Return the mean of the steps to a development perplexity, and the time they take where ``costs`` tell it.

    Where not all runs reach it: how many do.
    """
    found = over_seeds(runs, partial(steps_to, goal=goal))
    if found is None or found.seeds < len(runs):
        return f"{NOTHING} ({found.seeds if found else 0} of {len(runs)} reach it)" if runs else NOTHING
    each = milliseconds(costs, runs[0])
    return shown(found, 0) + ("" if each is None else f" ({shown(found.mean * each / 1000, 1)} s)")


def steps_to(run: RunSummary, goal: float) -> float | None:
    """Return the step of the first evaluation at or below ``goal``."""
    return next((float(step) for step, value in run.curve if value <= goal), None)


def milliseconds(costs: Sequence[Cost], run: RunSummary) -> float | None:
    """Return what a step of such a run takes by itself; between two vocabularies that were measured, a straight line."""
    size = (run.record.get("config") or {}).get("model", {}).get("hidden")
    words = (run.record.get("data") or {}).get("vocab_size") or 0
    wanted = (STEP, size, scheme_of(run))
    points = sorted((cost.words, cost.median) for cost in costs if (cost.quantity, cost.size, cost.scheme) == wanted)
    if known := dict(points).get(words):
        return known
    for (low, below), (high, above) in itertools.pairwise(points):
        if low < words < high:
            return below + (above - below) * (words - low) / (high - low)
    return None


def scheme_of(run: RunSummary) -> str | None:
    """Return the scheme of the bench that trains as a run does; None for those that are not measured."""
    config = run.record.get("config") or {}
    smoothing = config.get("smoothing", {})
    if not config.get("model", {}).get("tied", True) or config.get("dropout", {}).get("kind", "table") != "table":
        return None
    if smoothing.get("method") == "none":
        return VANILLA
    if smoothing.get("method") != "variational" or smoothing.get("scheme") != "kneser-ney":
        return None
    if smoothing.get("granularity") == "element":
        return {"sequence": ELEMENT_SEQUENCE, "batch": ELEMENT_BATCH}.get(smoothing.get("scope"))
    return WORD
