"""How cost grows with the text: how soon each model is as good as vanilla will be, by the share of the training text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from varsmooth.report.runs import RunSummary
from varsmooth.reproduce import markdown
from varsmooth.reproduce.experiments import Experiment, best_runs, group_of
from varsmooth.reproduce.markdown import not_run, shown
from varsmooth.reproduce.records import load_group, over_seeds


def data_cost_table(experiment: Experiment, results: Path, corpus: str) -> str:
    """Return words, ms/step and the steps to the first arm's best development perplexity, by share; empty ones are left out."""
    records = load_group(results, corpus, group_of(experiment, "full"))
    first, header = experiment.arms[0], ["share", "words in the vocabulary", "tokens"]
    for arm in experiment.arms:
        header += [f"{arm.label}: ms/step", f"steps to the best of {first.label}"]
    rows = []
    for value in experiment.values:
        members = [best_runs(records, arm, value) for arm in experiment.arms]
        if not members[0]:
            continue
        goal = fmean(run.best_valid or float("inf") for run in members[0])
        data = members[0][0].record.get("data") or {}
        cells = [f"{value:g}", f"{data.get('vocab_size', 0):,}", f"{(data.get('tokens') or {}).get('train', 0):,}"]
        for runs in members:
            cells += [shown(over_seeds(runs, _ms_per_step)), shown(_mean_steps(runs, goal), 0)]
        rows.append(cells)
    return markdown.table(header, rows, texts=0) if rows else not_run(["cost"], 1)


def steps_to(run: RunSummary, goal: float) -> float | None:
    """Return the step of the first evaluation at or below ``goal``."""
    return next((float(step) for step, value in run.curve if value <= goal), None)


def _mean_steps(runs: Sequence[RunSummary], goal: float) -> float | None:
    found = over_seeds(runs, partial(steps_to, goal=goal))
    return None if found is None else found.mean


def _ms_per_step(run: RunSummary) -> float | None:
    found = run.record.get("ms_per_step")
    return None if found is None else float(found)
