"""Which variant of a point is the best, and the final runs that follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Unpack

from varsmooth.experiment.seeds import Spread
from varsmooth.report.runs import RunSummary
from varsmooth.reproduce.catalogue import Budget
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.experiments import FINAL, Arm, Experiment, Part, group_of, point_name, possible_final_jobs
from varsmooth.reproduce.jobs import Job, table_group
from varsmooth.reproduce.records import Group, Records, over_seeds, perplexity


def best_variant(experiment: Experiment, group: Group, arm: Arm, place: int) -> int | None:
    """Return the number of a point's best variant by development perplexity; None until all variants have been run."""
    names = [point_name(arm, experiment.values[place], number) for number in range(len(arm.variants_at(place)))]
    diverged = {name.rpartition("-seed")[0] for name in group.diverged}
    figures = {name: judged_by(experiment, group.runs.get(name, [])) for name in names if name not in diverged}
    known = {name: figure.mean for name, figure in figures.items() if figure is not None}
    tried = {*group.runs, *diverged}
    return names.index(min(known, key=known.__getitem__)) if known and tried.issuperset(names) else None


def judged_by(experiment: Experiment, runs: Sequence[RunSummary]) -> Spread | None:
    """Return the figure that ranks variants: the best on valid for trials, else that at its tuned temperature."""
    if experiment.final_seeds:
        return over_seeds(runs, lambda run: run.best_valid)
    return perplexity(runs, "valid", tuned=True)


def best_runs(
    experiment: Experiment, records: Records, corpus: str, arm: Arm, place: int, budget: Budget = "full"
) -> list[RunSummary]:
    """Return the runs of a point's best variant, its final ones where the experiment has them; none until it is known."""
    value = experiment.values[place]
    if value == experiment.in_table:
        runs = records.runs(corpus, table_group(experiment.size, "tuned", budget)).get(arm.row, [])
        return [run for run in runs if run.seed in (experiment.final_seeds or experiment.seeds)]
    group = records.group(corpus, group_of(experiment, budget))
    best = best_variant(experiment, group, arm, place)
    if best is None:
        return []
    return group.runs.get(point_name(arm, value, best) + (FINAL if experiment.final_seeds else ""), [])


def final_jobs(experiment: Experiment, corpus: str, chosen: Chosen, results: Path, **part: Unpack[Part]) -> list[Job]:
    """Return the final runs of the points whose trials have all ended; for most experiments none."""
    return _finals(experiment, corpus, chosen, part, _variants(experiment, corpus, results, part, ended=True))


def awaited_jobs(experiment: Experiment, corpus: str, chosen: Chosen, results: Path, **part: Unpack[Part]) -> list[Job]:
    """Return, for the other points, the final runs as they would be of the first variant: there will be as many."""
    return _finals(experiment, corpus, chosen, part, _variants(experiment, corpus, results, part, ended=False))


def _variants(experiment: Experiment, corpus: str, results: Path, part: Part, *, ended: bool) -> set[str]:
    """Name the best variant of every point with final runs whose trials have ended, or the first of every other one."""
    if not experiment.final_seeds:
        return set()
    group, names = Records(results).group(corpus, group_of(experiment, part.get("budget", "full"))), set()
    for arm, (place, value) in itertools.product(experiment.arms, enumerate(experiment.values)):
        best = best_variant(experiment, group, arm, place) if value != experiment.in_table else None
        if value != experiment.in_table and (best is not None) == ended:
            names.add(point_name(arm, value, best or 0))
    return names


def _finals(experiment: Experiment, corpus: str, chosen: Chosen, part: Part, names: Container[str]) -> list[Job]:
    jobs = possible_final_jobs(experiment, corpus, chosen, **part)
    return [job for job in jobs if job.name.rpartition("-seed")[0].removesuffix(FINAL) in names]
