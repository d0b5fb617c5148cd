"""Named experiments beside the table: lists of runs (experiments.toml)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypedDict, Unpack

from varsmooth.config import with_values
from varsmooth.errors import InputError, nearest
from varsmooth.recipe import load_recipe
from varsmooth.reproduce.catalogue import Budget, Setting, Values, budget_values, packaged
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.jobs import Job

SHARE = "share"
"""What an experiment varies where it cuts the training text."""
FINAL = "-final"
"""What follows the name of a variant's records where they are of final runs, not of trials."""


@dataclass(frozen=True)
class Arm:
    name: str
    row: str
    label: str
    set: Values = field(default_factory=dict)
    variants: tuple[Values, ...] = ({},)
    grids: tuple[tuple[Values, ...], ...] = ()
    """instead of variants: those of each value of the curve, which other text or other lengths may want"""
    table: bool = False
    """whether its runs are those of the row in the table of the paper's setting, so that there is nothing to train"""
    predict: str | None = None
    """by what it predicts, where that is not as its recipe says"""

    def variants_at(self, place: int) -> tuple[Values, ...]:
        """Return what is tried at a value of the curve, by its place."""
        return self.grids[place] if self.grids else self.variants


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    corpora: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    split: str
    final_seeds: tuple[int, ...] = ()
    """where there are any, runs with ``seeds`` are trials, judged by their best on the development set alone; the best variant
    of every point is then run in full with these"""
    tuned: bool = False
    """whether the figure is that at the tuned temperature"""
    best_prediction: bool = False
    """whether each figure is by the prediction that is best on the development set, and not by the arm's own"""
    vary: str = ""
    """the setting that makes the horizontal axis; empty: the arms alone are compared"""
    axis: str = ""
    values: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    """of each value, where they differ"""
    evaluations: int = 20
    """of each run, where ``steps`` tells its length: short ones must not miss their best"""
    eval_every: int = 0
    """steps between evaluations; 0: as the recipe says"""
    size: int = 512
    setting: Setting = "paper"
    """tuned: for the rows that were, over what they chose"""
    trials: bool = False
    """whether its runs are trials, judged by their best on the development set alone"""
    tunes: Setting | None = None
    """where its runs are trials: the setting in which they choose the values of their rows, at this size. They say in full how
    they differ from the recipes, so that they stay the same whatever is chosen"""
    alone: bool = False
    """whether its runs must have the machine to themselves, because their time is what is asked for"""
    in_table: float | None = None
    """the value of the curve at which points are the tuned rows of the table, so that there is nothing to train"""
    bands: bool = False
    """whether its arms are also shown by how often the target was seen in training, by the mode as well"""
    reference: str = ""
    """the row of the table that its curves are to be compared with"""


@cache
def named_experiments() -> dict[str, Experiment]:
    """Return the experiments by name."""
    return {name: _experiment(name, dict(about)) for name, about in packaged("experiments.toml").items()}


class Part(TypedDict, total=False):
    """Which runs of an experiment: all that are planned, where nothing else is said."""

    budget: Budget
    seeds: Sequence[int]
    arms: Sequence[str]
    points: Sequence[float]
    """values of a curve"""


def experiment_jobs(experiment: Experiment, corpus: str, chosen: Chosen, **part: Unpack[Part]) -> list[Job]:
    """Return the runs of an experiment on a corpus, over what was chosen in its setting.

    Where the experiment ends with final runs, these are its trials, whose seeds are always their own.
    """
    seeds = experiment.seeds if experiment.final_seeds else part.get("seeds") or experiment.seeds
    # Trials are judged on the development set alone.
    common: Values = {"evaluate.final": False} if experiment.trials or experiment.final_seeds else {}
    return _jobs(experiment, corpus, chosen, part, seeds, common)


def possible_final_jobs(experiment: Experiment, corpus: str, chosen: Chosen, **part: Unpack[Part]) -> list[Job]:
    """Return the final runs of every variant, of which only those of the best are to be trained; for most experiments none."""
    if not experiment.final_seeds:
        return []
    return _jobs(experiment, corpus, chosen, part, part.get("seeds") or experiment.final_seeds, ending=FINAL)


def is_known(experiment: Experiment, chosen: Chosen, budget: Budget = "full") -> bool:
    """Whether it can be said which runs an experiment has: what it builds on was chosen, and the budget goes with it."""
    return (experiment.setting == "paper" or chosen.has_tuned(experiment.size)) and goes_with(experiment, budget)


def goes_with(experiment: Experiment, budget: Budget) -> bool:
    """Whether a budget, which may shorten runs, leaves an experiment what it is about."""
    return budget == "full" or experiment.vary != "train.steps"


def _jobs(
    experiment: Experiment,
    corpus: str,
    chosen: Chosen,
    part: Part,
    seeds: Sequence[int],
    common: Values | None = None,
    ending: str = "",
) -> list[Job]:
    budget = part.get("budget", "full")
    if not goes_with(experiment, budget):
        raise InputError(f"--budget {budget} does not go with --experiment {experiment.name}, which is about the length itself")
    group = group_of(experiment, budget)
    jobs = []
    # Point by point, so that those that are reached before the time is up can be compared.
    for place, value in _points_to_run(experiment, part.get("points", ())):
        own = _point_values(experiment, place)
        for arm in _arms_to_run(experiment, chosen, part.get("arms", ())):
            recipe = load_recipe(f"{arm.row}/{corpus}-{experiment.size}")
            base = _base_values(experiment, chosen, arm)
            for number, variant in enumerate(arm.variants_at(place)):
                values = {**base, **arm.set, **own, **variant, **(common or {})}
                values |= _no_longer(budget_values(budget), values)
                for seed in seeds:
                    config = with_values(recipe, {**values, "train.seed": seed}, f"{group}, {arm.name}")
                    share = value if experiment.vary == SHARE and value is not None else 1.0
                    name = f"{point_name(arm, value, number)}{ending}-seed{seed}"
                    jobs.append(Job(corpus, group, name, config, share, experiment.alone))
    return jobs


def _no_longer(budget: Values, values: Values) -> Values:
    """A budget's values, which make no run longer than it would be."""
    steps = min(values.get("train.steps", math.inf), budget.get("train.steps", math.inf))
    return {**budget, **({"train.steps": steps} if "train.steps" in budget else {})}


def _points_to_run(experiment: Experiment, points: Sequence[float]) -> list[tuple[int, float | None]]:
    """The values of the curve with their places, one that is None where there is no curve."""
    known = ", ".join(f"{value:g}" for value in experiment.values)
    for point in points:
        if point not in experiment.values:
            raise InputError(
                f"--points: {point:g} is no point of {experiment.name}"
                + (f"; points: {known}" if known else ", which has none")
            )
        if point == experiment.in_table:
            raise InputError(f"--points: {point:g} is the tuned table, and trained with it: --setting tuned")
    if not experiment.values:
        return [(0, None)]
    wanted = points or [value for value in experiment.values if value != experiment.in_table]
    return [(place, value) for place, value in enumerate(experiment.values) if value in wanted]


def _arms_to_run(experiment: Experiment, chosen: Chosen, names: Sequence[str]) -> list[Arm]:
    known = [arm.name for arm in experiment.arms]
    for name in names:
        if name not in known:
            raise InputError(f"--rows: {name!r} is no arm of {experiment.name}{nearest(name, known)}; arms: {', '.join(known)}")
    arms = [arm for arm in experiment.arms if not arm.table]
    if experiment.setting == "tuned":
        tuned = chosen.tuned_rows(experiment.size)
        arms = [arm for arm in arms if arm.row in tuned]
    if other := [name for name in names if name not in [arm.name for arm in arms]]:
        why = "has not been tuned yet" if experiment.setting == "tuned" else "is a row of the table, and trained with it"
        raise InputError(f"--rows: {other[0]} {why}")
    return [arm for arm in arms if not names or arm.name in names]


def _base_values(experiment: Experiment, chosen: Chosen, arm: Arm) -> Values:
    return {} if experiment.tunes else chosen.values(experiment.setting, experiment.size, arm.row)


def group_of(experiment: Experiment, budget: Budget) -> str:
    """Return the name of an experiment's folder."""
    return experiment.name if budget == "full" else f"{experiment.name}-{budget}"


def point_name(arm: Arm, value: float | None, variant: int) -> str:
    """Return the name of a point's records, without the seed."""
    several = bool(arm.grids) or len(arm.variants) > 1
    parts = [arm.name, *([] if value is None else [f"{value:g}"]), *([f"v{variant + 1}"] if several else [])]
    return "-".join(parts)


def _point_values(experiment: Experiment, place: int) -> Values:
    values: Values = {"train.eval_every": experiment.eval_every} if experiment.eval_every else {}
    if experiment.steps:
        steps = experiment.steps[place]
        values = {"train.steps": steps, "train.eval_every": max(1, steps // experiment.evaluations)}
    if experiment.vary and experiment.vary != SHARE:
        values[experiment.vary] = experiment.values[place]
    return values


def _experiment(name: str, about: dict[str, Any]) -> Experiment:
    grids = about.pop("grids", {})
    arms = tuple(_arm(arm, grids) for arm in about.pop("arms"))
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    return Experiment(name=name, arms=arms, **lists)


def _arm(about: dict[str, Any], grids: Mapping[str, list[Any]]) -> Arm:
    """In the file ``grid`` has lists of values, each combination of which is a variant; ``grids`` names those of each value."""
    grid, by_value = about.get("grid"), grids[about["grids"]] if "grids" in about else []
    variants = _combinations(grid) if grid else tuple(about.get("variants", [{}]))
    each = tuple(tuple(itertools.chain.from_iterable(map(_combinations, point))) for point in by_value)
    others = {key: value for key, value in about.items() if key != "grid"}
    return Arm(**{**others, "variants": variants, "grids": each})


def _combinations(grid: Mapping[str, list[Any]]) -> tuple[Values, ...]:
    return tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
