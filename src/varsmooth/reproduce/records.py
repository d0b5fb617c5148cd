"""Committed records: what each row of a table has, and the figures in it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError
from varsmooth.experiment.seeds import Spread, spread
from varsmooth.report.runs import RunSummary, compared_config, group_runs, load_run
from varsmooth.reproduce.catalogue import BUDGETS, SETTINGS, SIZES, corpus_plan
from varsmooth.reproduce.chosen import FILE, read_chosen
from varsmooth.reproduce.experiments import experiment_jobs, group_of, is_known, named_experiments, possible_final_jobs
from varsmooth.reproduce.jobs import Job, table_group, table_jobs
from varsmooth.reproduce.markdown import paragraphs, told
from varsmooth.reproduce.matching import diverged, fits, has_ended
from varsmooth.train.record import result_of

SEEDED = re.compile(r"(.+)-seed(\d+)")
PREDICTIONS = ("mode", "mean", "mean-input")
Result = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The records of a table or an experiment."""

    runs: dict[str, list[RunSummary]]
    """those that finished and are as it is planned now, by their name without the seed"""
    diverged: tuple[str, ...]
    """names, with the seed, of those whose loss was not finite"""
    left_out: tuple[str, ...]
    """names of those that are not planned, or are of other values or of another text"""


class Records:
    """The records below a folder, as far as they are of what is planned now: by the recipes, and by what tuning chose."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._groups: dict[tuple[str, str], Group] = {}

    def group(self, corpus: str, group: str) -> Group:
        """Return a table or an experiment, read once."""
        if (corpus, group) not in self._groups:
            self._groups[corpus, group] = self._read(corpus, group)
        return self._groups[corpus, group]

    def runs(self, corpus: str, group: str) -> dict[str, list[RunSummary]]:
        """Return its runs."""
        return self.group(corpus, group).runs

    def _read(self, corpus: str, group: str) -> Group:
        found: dict[str, list[RunSummary]] = {}
        diverging, left_out = [], []
        folder = self.results / corpus / group
        paths = sorted(folder.glob("*/record.json"))
        planned = {_unseeded(job.name): job for job in planned_jobs(self.results, corpus, group)} if paths else {}
        for path in paths:
            name, run = path.parent.name, load_run(path.parent)
            match = SEEDED.fullmatch(name)
            if match is None or int(match[2]) != run.seed:
                raise InputError(f"{path.parent}: must be called NAME-seedN, after the seed of its record ({run.seed})")
            if not has_ended(run.record):
                continue
            job = planned.get(match[1])
            # Without a plan, as for finalists and for a table before its choices are at hand, records speak for themselves.
            if planned and (job is None or not fits(job, run.record)):
                left_out.append(name)
            elif diverged(run.record):
                diverging.append(name)
            else:
                found.setdefault(match[1], []).append(run)
        for name, runs in found.items():
            if len(group_runs(runs)) > 1:
                raise InputError(
                    f"{folder}: the records of {name} differ in {_difference(runs)}; run all its seeds again, or remove some"
                )
            runs.sort(key=lambda run: run.seed)
        return Group(found, tuple(diverging), tuple(left_out))


def passed_over(group: Group) -> str:
    """Say which records of a group are not in its table, and why."""
    of_others = told("Not shown, because they are of other values or another text", group.left_out)
    return paragraphs(told("The loss was not finite", group.diverged), of_others)


def planned_jobs(results: Path, corpus: str, group: str) -> list[Job]:
    """Return the runs of a table or an experiment as they would be made now; none where that has not been chosen."""
    plan, chosen = corpus_plan(corpus), read_chosen(results / corpus / FILE)
    for budget, size, setting in itertools.product(BUDGETS, SIZES, SETTINGS):
        if group == table_group(size, setting, budget):
            if setting == "tuned" and not chosen.has_tuned(size):
                return []
            return table_jobs(plan, chosen, size=size, setting=setting, budget=budget)
    for budget, experiment in itertools.product(BUDGETS, named_experiments().values()):
        if group == group_of(experiment, budget):
            kinds = (experiment_jobs, possible_final_jobs) if is_known(experiment, chosen, budget) else ()
            return [job for kind in kinds for job in kind(experiment, corpus, chosen, budget=budget)]
    return []


def _unseeded(name: str) -> str:
    match = SEEDED.fullmatch(name)
    return match[1] if match else name


def sampled_result(run: RunSummary, split: str, average: str) -> Result | None:
    """Return the result of draws."""
    for entry in run.results:
        if (entry.get("split"), entry.get("predict"), entry.get("average")) == (split, "sample", average):
            return entry
    return None


def over_seeds(runs: Sequence[RunSummary], figure: Callable[[RunSummary], float | None]) -> Spread | None:
    """Return mean and spread of a figure over the runs that have it."""
    pairs = [(run.seed, figure(run)) for run in runs]
    return spread((seed, value) for seed, value in pairs if value is not None)


def difference(one: Spread, other: Spread) -> Spread:
    """Return how far the first mean is above the second, with the standard error, where both have seeds, as its spread."""
    errors = [it.deviation**2 / it.seeds for it in (one, other) if it.deviation is not None]
    error = math.sqrt(sum(errors)) if len(errors) == 2 else None
    return Spread(one.mean - other.mean, error, min(one.seeds, other.seeds))


def perplexity(runs: Sequence[RunSummary], split: str, predict: str | None = None, *, tuned: bool = False) -> Spread | None:
    """Return the perplexity over seeds."""
    return over_seeds(runs, lambda run: _figure(result_of(run.record, split, predict, tuned=tuned)))


def best_prediction(runs: Sequence[RunSummary], *, scaled: bool = False) -> str | None:
    """Return the prediction with the lowest development perplexity, at its tuned temperature or with its tuned scales.

    None where not all runs have such figures.
    """
    control = scaled_perplexity if scaled else partial(perplexity, tuned=True)
    figures = {predict: control(runs, "valid", predict) for predict in PREDICTIONS}
    known = {predict: it.mean for predict, it in figures.items() if it is not None and it.seeds == len(runs)}
    return min(known, key=known.__getitem__) if known else None


def scaled_perplexity(runs: Sequence[RunSummary], split: str, predict: str | None = None) -> Spread | None:
    """Return the perplexity with scales of context and bias tuned on valid, over seeds; older records have none."""

    def figure(run: RunSummary) -> float | None:
        scaled = (result_of(run.record, split, predict, tuned=True) or {}).get("scaled")
        # JSON has nothing else for what is beyond all numbers.
        return None if not scaled else math.inf if scaled["perplexity"] is None else float(scaled["perplexity"])

    return over_seeds(runs, figure)


def sampled_perplexity(runs: Sequence[RunSummary], split: str, average: str) -> Spread | None:
    """Return the perplexity of draws over seeds."""
    return over_seeds(runs, lambda run: _figure(sampled_result(run, split, average)))


def _figure(result: Result | None) -> float | None:
    return None if result is None else float(result["perplexity"])


def _difference(runs: Sequence[RunSummary]) -> str:
    """Name the settings in which runs differ, or the data."""
    each = [compared_config(run) for run in runs]
    keys = sorted({key for settings in each for key in settings})
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in each}) > 1]
    return ", ".join(differing) or "their data"
