"""Named experiments beside the table: lists of runs (experiments.toml), and what their records say."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError, nearest
from varsmooth.recipe import load_recipe
from varsmooth.report.runs import RunSummary
from varsmooth.report.tables import Spread
from varsmooth.reproduce import markdown
from varsmooth.reproduce.catalogue import SIZES, Budget, Setting, Values, budget_values, packaged
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.jobs import Job, changed, table_group
from varsmooth.reproduce.markdown import not_run, paragraphs, seeds_shown, shown
from varsmooth.reproduce.records import load_group, over_seeds, perplexity

SHARE = "share"
"""What an experiment varies where it cuts the training text."""
EVALUATIONS = 20
"""How often a run is evaluated where its length is the experiment's own: short runs must not miss their best."""


@dataclass(frozen=True)
class Arm:
    name: str
    row: str
    label: str
    set: Values = field(default_factory=dict)
    variants: tuple[Values, ...] = ({},)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    """instead of variants: lists of values, of which every combination is one"""
    table: bool = False
    """whether its runs are those of the row in the table of the paper's setting, so that there is nothing to train"""
    predict: str | None = None
    """by what it predicts, where that is not as its recipe says"""


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    corpora: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    split: str
    tuned: bool = False
    """whether the figure is that at the tuned temperature"""
    vary: str = ""
    """the setting that makes the horizontal axis; empty: the arms alone are compared"""
    axis: str = ""
    values: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    """of each value, where they differ"""
    size: int = 512
    setting: Setting = "paper"
    """tuned: over what a smaller size was tuned to, for the rows that were"""
    trials: bool = False
    """whether its runs are trials, judged by their best on the development set alone"""
    alone: bool = False
    """whether its runs must have the machine to themselves, because their time is what is asked for"""


@cache
def named_experiments() -> dict[str, Experiment]:
    """Return the experiments by name."""
    return {name: _experiment(name, dict(about)) for name, about in packaged("experiments.toml").items()}


def experiment_jobs(
    experiment: Experiment,
    corpus: str,
    chosen: Chosen,
    *,
    budget: Budget = "full",
    seeds: Sequence[int] = (),
    arms: Sequence[str] = (),
) -> list[Job]:
    """Return the runs of an experiment on a corpus, over what was chosen in its setting; ``arms`` chooses some of them."""
    group = group_of(experiment, budget)
    jobs = []
    for arm in _arms_to_run(experiment, chosen, arms):
        recipe = load_recipe(f"{arm.row}/{corpus}-{experiment.size}")
        base = _base_values(experiment, chosen, arm)
        for place, value in enumerate(experiment.values or (None,)):
            own = _point_values(experiment, place)
            for number, variant in enumerate(arm.variants):
                values = {**base, **arm.set, **own, **variant, **budget_values(budget)}
                for seed in seeds or experiment.seeds:
                    config = changed(recipe, {**values, "train.seed": seed}, f"{group}, {arm.name}")
                    share = value if experiment.vary == SHARE and value is not None else 1.0
                    jobs.append(Job(corpus, group, f"{point_name(arm, value, number)}-seed{seed}", config, share))
    return jobs


def _arms_to_run(experiment: Experiment, chosen: Chosen, names: Sequence[str]) -> list[Arm]:
    known = [arm.name for arm in experiment.arms]
    for name in names:
        if name not in known:
            raise InputError(f"--rows: {name!r} is no arm of {experiment.name}{nearest(name, known)}; arms: {', '.join(known)}")
    arms = [arm for arm in experiment.arms if not arm.table and (not names or arm.name in names)]
    if experiment.setting == "tuned":
        tuned = chosen.tuned_rows(min(SIZES))
        arms = [arm for arm in arms if arm.row in tuned]
    return arms


def _base_values(experiment: Experiment, chosen: Chosen, arm: Arm) -> Values:
    if experiment.setting == "tuned":
        return chosen.inherited("tuned", experiment.size, arm.row)
    return chosen.values("paper", experiment.size, arm.row)


def group_of(experiment: Experiment, budget: Budget) -> str:
    """Return the name of an experiment's folder."""
    return experiment.name if budget == "full" else f"{experiment.name}-{budget}"


def point_name(arm: Arm, value: float | None, variant: int) -> str:
    """Return the name of a point's records, without the seed."""
    parts = [arm.name, *([] if value is None else [f"{value:g}"]), *([f"v{variant + 1}"] if len(arm.variants) > 1 else [])]
    return "-".join(parts)


def best_runs(records: dict[str, list[RunSummary]], arm: Arm, value: float | None) -> list[RunSummary]:
    """Return the runs of a point's best variant by development perplexity; none until all variants have been run."""
    variants = [records.get(point_name(arm, value, number), []) for number in range(len(arm.variants))]
    figures = [perplexity(runs, "valid", tuned=True) for runs in variants]
    known = [(figure.mean, number) for number, figure in enumerate(figures) if figure is not None]
    return variants[min(known)[1]] if len(known) == len(variants) else []


def curves(
    experiment: Experiment, results: Path, corpus: str, budget: Budget = "full"
) -> dict[str, list[tuple[float, Spread]]]:
    """Return the points that have been run, by the label of their arm."""
    records = load_group(results, corpus, group_of(experiment, budget))
    found: dict[str, list[tuple[float, Spread]]] = {}
    for arm in experiment.arms:
        points = [(value, _figure(experiment, best_runs(records, arm, value))) for value in experiment.values]
        found[arm.label] = [(value, figure) for value, figure in points if figure is not None]
    return found


def experiment_table(experiment: Experiment, results: Path, corpus: str, budget: Budget = "full") -> str:
    """Return what the records of an experiment say, with gaps for what has not been run."""
    if experiment.alone:
        return _times_table(experiment, results, corpus, budget)
    kind = _trials_table if experiment.trials else _curve_table if experiment.vary else _arms_table
    return kind(experiment, results, corpus, budget)


def _curve_table(experiment: Experiment, results: Path, corpus: str, budget: Budget) -> str:
    found = curves(experiment, results, corpus, budget)
    header = [experiment.axis, *(f"{value:g}" for value in experiment.values)]
    rows = [[label, *(shown(dict(points).get(value)) for value in experiment.values)] for label, points in found.items()]
    if experiment.vary == SHARE:
        rows += _gains(experiment, found)
    missing = [label for label, points in found.items() if len(points) < len(experiment.values)]
    nothing = not any(found.values())
    return paragraphs(markdown.table(header, rows), not_run(missing, len(found) if nothing else 0))


def _gains(experiment: Experiment, found: dict[str, list[tuple[float, Spread]]]) -> list[list[str]]:
    """How far each later arm is below the first."""
    (_, first), *others = found.items()
    baseline = dict(first)
    rows = []
    for label, points in others:
        own = dict(points)
        both = [(baseline.get(value), own.get(value)) for value in experiment.values]
        rows.append([f"gain of {label}", *(shown(plain.mean - it.mean if plain and it else None) for plain, it in both)])
    return rows


def _arms_table(experiment: Experiment, results: Path, corpus: str, budget: Budget) -> str:
    records = load_group(results, corpus, group_of(experiment, budget))
    in_table = load_group(results, corpus, table_group(experiment.size, experiment.setting, budget))
    rows, missing = [], []
    for arm in experiment.arms:
        runs = records.get(point_name(arm, None, 0), [])
        if arm.table:
            runs = [run for run in in_table.get(arm.row, []) if run.seed in experiment.seeds]
        missing += [] if runs else [arm.label]
        cells = [("valid", False), ("test", False), ("test", True)]
        figures = [perplexity(runs, split, arm.predict, tuned=tuned) for split, tuned in cells]
        rows.append([arm.label, seeds_shown([run.seed for run in runs]), *map(shown, figures)])
    header = ["what is changed", "seeds", "valid", "test", "test, tuned temperature"]
    return paragraphs(markdown.table(header, rows), not_run(missing, len(rows)))


def _trials_table(experiment: Experiment, results: Path, corpus: str, budget: Budget) -> str:
    """Return the best development perplexity of every trial."""
    records = load_group(results, corpus, group_of(experiment, budget))
    rows = []
    for arm in experiment.arms:
        for number, variant in enumerate(arm.variants):
            if runs := records.get(point_name(arm, None, number), []):
                values = ", ".join(f"`{key}={value}`" for key, value in variant.items())
                rows.append([arm.label, values, shown(over_seeds(runs, lambda run: run.best_valid))])
    return markdown.table(["model", "values", "best valid"], rows, texts=2) if rows else not_run(["trials"], 1)


def _times_table(experiment: Experiment, results: Path, corpus: str, budget: Budget) -> str:
    """Return how long each run took, its evaluation included, and on what."""
    records = load_group(results, corpus, group_of(experiment, budget))
    rows = []
    for arm in experiment.arms:
        for run in records.get(point_name(arm, None, 0), []):
            steps, minutes = run.record.get("steps"), float(run.record.get("seconds") or 0.0) / 60
            hardware = str((run.record.get("hardware") or {}).get("name"))
            each = float(run.record.get("ms_per_step") or 0.0)
            rows.append([arm.label, hardware, f"{steps:,}", shown(each), shown(minutes), shown(perplexity([run], "test"))])
    header = ["model", "hardware", "steps", "ms/step", "minutes in all", "test"]
    return markdown.table(header, rows, texts=2) if rows else not_run(["times"], 1)


def _figure(experiment: Experiment, runs: Sequence[RunSummary]) -> Spread | None:
    return perplexity(runs, experiment.split, tuned=experiment.tuned)


def _point_values(experiment: Experiment, place: int) -> Values:
    values: Values = {}
    if experiment.steps:
        steps = experiment.steps[place]
        values = {"train.steps": steps, "train.eval_every": max(1, steps // EVALUATIONS)}
    if experiment.vary and experiment.vary != SHARE:
        values[experiment.vary] = experiment.values[place]
    return values


def _experiment(name: str, about: dict[str, Any]) -> Experiment:
    arms = tuple(_arm(arm) for arm in about.pop("arms"))
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    return Experiment(name=name, arms=arms, **lists)


def _arm(about: dict[str, Any]) -> Arm:
    variants = tuple(about.get("variants", [{}]))
    if grid := about.get("grid"):
        variants = tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return Arm(**{**about, "variants": variants})
