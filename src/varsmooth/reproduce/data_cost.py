"""How cost grows with the text: how soon each model is as good as vanilla will be, by the share of the training text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from varsmooth.report.runs import RunSummary
from varsmooth.reproduce import markdown
from varsmooth.reproduce.experiment_tables import best_runs
from varsmooth.reproduce.experiments import Experiment, group_of
from varsmooth.reproduce.markdown import NOTHING, not_run, shown
from varsmooth.reproduce.records import Records, over_seeds


def data_cost_table(experiment: Experiment, records: Records, corpus: str) -> str:
    """Return words, tokens and the steps to the first arm's best development perplexity, by share; empty ones are left out."""
    group = records.group(corpus, group_of(experiment, "full"))
    first, header = experiment.arms[0], ["share", "words in the vocabulary", "tokens"]
    header += [f"{arm.label}: steps to the best of {first.label}" for arm in experiment.arms]
    rows = []
    for value in experiment.values:
        members = [best_runs(group, arm, value) for arm in experiment.arms]
        if not members[0]:
            continue
        goal = fmean(run.best_valid or float("inf") for run in members[0])
        data = members[0][0].record.get("data") or {}
        cells = [f"{value:g}", f"{data.get('vocab_size', 0):,}", f"{(data.get('tokens') or {}).get('train', 0):,}"]
        rows.append([*cells, *(steps_shown(runs, goal) for runs in members)])
    return markdown.table(header, rows, texts=0) if rows else not_run(["cost"], 1)


def steps_shown(runs: Sequence[RunSummary], goal: float) -> str:
    """Return the mean of the steps to a development perplexity; where not all runs reach it, how many do."""
    found = over_seeds(runs, partial(steps_to, goal=goal))
    reached = found.seeds if found else 0
    return shown(found, 0) if reached == len(runs) else f"{NOTHING} ({reached} of {len(runs)} reach it)"


def steps_to(run: RunSummary, goal: float) -> float | None:
    """Return the step of the first evaluation at or below ``goal``."""
    return next((float(step) for step, value in run.curve if value <= goal), None)
