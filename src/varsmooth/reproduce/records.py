"""Committed records: what each row of a table has, and the figures in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError
from varsmooth.report.runs import RunSummary, flat_config, group_runs, load_run
from varsmooth.report.tables import Spread, spread

SEEDED = re.compile(r"(.+)-seed(\d+)")
Result = dict[str, Any]


def load_group(results: Path, corpus: str, group: str) -> dict[str, list[RunSummary]]:
    """Return the finished runs of a table or an experiment by their name without the seed; those of one name must be alike."""
    found: dict[str, list[RunSummary]] = {}
    folder = results / corpus / group
    for path in sorted(folder.glob("*/record.json")):
        match = SEEDED.fullmatch(path.parent.name)
        run = load_run(path.parent)
        if match is None or int(match[2]) != run.seed:
            raise InputError(f"{path.parent}: must be called NAME-seedN, after the seed of its record ({run.seed})")
        if run.finished:
            found.setdefault(match[1], []).append(run)
    for name, runs in found.items():
        if len(group_runs(runs)) > 1:
            raise InputError(
                f"{folder}: the records of {name} differ in {_difference(runs)}; run all its seeds again, or remove some"
            )
        runs.sort(key=lambda run: run.seed)
    return found


def result_of(run: RunSummary, split: str, predict: str | None = None, *, tuned: bool = False) -> Result | None:
    """Return the result by a prediction, the recipe's own unless told, at temperature 1 or at the tuned one."""
    wanted = (split, predict or own_prediction(run), tuned)
    for entry in run.results:
        if (entry.get("split"), entry.get("predict"), entry.get("tuned_temperature")) == wanted:
            return entry
    return None


def sampled_result(run: RunSummary, split: str, average: str) -> Result | None:
    """Return the result of draws."""
    for entry in run.results:
        if (entry.get("split"), entry.get("predict"), entry.get("average")) == (split, "sample", average):
            return entry
    return None


def own_prediction(run: RunSummary) -> str:
    """How the run's recipe predicts: by the mean where tables were drawn, else by the mode."""
    return str((run.record.get("config") or {}).get("smoothing", {}).get("predict", "mode"))


def over_seeds(runs: Sequence[RunSummary], figure: Callable[[RunSummary], float | None]) -> Spread | None:
    """Return mean and spread of a figure over the runs that have it."""
    pairs = [(run.seed, figure(run)) for run in runs]
    return spread((seed, value) for seed, value in pairs if value is not None)


def perplexity(runs: Sequence[RunSummary], split: str, predict: str | None = None, *, tuned: bool = False) -> Spread | None:
    """Return the perplexity over seeds."""
    return over_seeds(runs, lambda run: _figure(result_of(run, split, predict, tuned=tuned)))


def sampled_perplexity(runs: Sequence[RunSummary], split: str, average: str) -> Spread | None:
    """Return the perplexity of draws over seeds."""
    return over_seeds(runs, lambda run: _figure(sampled_result(run, split, average)))


def _figure(result: Result | None) -> float | None:
    return None if result is None else float(result["perplexity"])


def _difference(runs: Sequence[RunSummary]) -> str:
    """Name the settings in which runs differ, or the data."""
    flat = [flat_config(run.record.get("config") or {}) for run in runs]
    keys = sorted({key for settings in flat for key in settings} - {"train.seed"})
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    return ", ".join(differing) or "their data"
