"""A study: what is tuned, within which budget and how; and what of it every worker must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from varsmooth.config import Config, flat_config, to_mapping, with_values
from varsmooth.sweep.space import Space, space_from_mapping, space_mapping

NOT_KEPT = ("name", "data.name", "data.data_dir")
"""The arm has the name; where the text lies differs between machines, and that it is the same is checked by its checksums."""

SamplerKind = Literal["grid", "tpe", "random"]
PrunerKind = Literal["none", "median", "halving"]
Mapped: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Budget:
    """What every arm may spend; whichever of ``trials``, ``total_steps`` and ``minutes`` is used up first ends it."""

    steps: int
    """training steps of a trial"""
    trials: int | None = None
    minutes: float | None = None
    total_steps: int | None = None
    """training steps of all trials together, never more; those that were given up early leave room for others"""


@dataclass(frozen=True)
class Sampler:
    """How configurations are chosen; ``startup_trials`` are random before TPE begins to learn."""

    kind: SamplerKind = "tpe"
    seed: int = 1
    startup_trials: int = 10
    recipe_first: bool = False
    """whether the first trial of every arm has the values of its recipe"""
    distinct: bool = False
    """whether no two of the random trials are the same, as long as there are others"""


@dataclass(frozen=True)
class Pruner:
    """Which trials are given up early: those worse than the median, or those that a rung of halving leaves behind."""

    kind: PrunerKind = "none"
    startup_trials: int = 5
    warmup_steps: int = 0
    min_steps: int = 0
    """halving: steps of the first rung; 0: estimated from the first trial"""
    factor: int = 3


@dataclass(frozen=True)
class Arm:
    """One of the things compared: a configuration, and what is tuned about it."""

    name: str
    config: Config
    space: Space


@dataclass(frozen=True)
class Study:
    """Arms with the same budget, sampler and pruner; ``seeds`` re-run the best of each."""

    name: str
    budget: Budget
    sampler: Sampler
    pruner: Pruner
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]


def study_mapping(study: Study) -> dict[str, Any]:
    """Return all that defines a study as JSON can hold it, the same on every machine."""
    arms = {arm.name: {"config": _flat(arm.config), "space": space_mapping(arm.space)} for arm in study.arms}
    parts = {"budget": asdict(study.budget), "sampler": asdict(study.sampler), "pruner": asdict(study.pruner)}
    return {"name": study.name, **parts, "seeds": list(study.seeds), "arms": arms}


def study_from_mapping(mapping: Mapped, data: Mapped) -> Study:
    """Read ``study_mapping`` back, with the name of the data set and its place, which it leaves out."""
    arms = []
    for name, arm in mapping["arms"].items():
        config = with_values(Config(), {**arm["config"], **{f"data.{key}": value for key, value in data.items()}}, "the study")
        arms.append(Arm(name, replace(config, name=name), space_from_mapping(arm["space"])))
    return Study(
        mapping["name"],
        Budget(**mapping["budget"]),
        Sampler(**mapping["sampler"]),
        Pruner(**mapping["pruner"]),
        tuple(mapping["seeds"]),
        tuple(arms),
    )


def study_changes(before: Mapped, now: Mapped) -> list[str]:
    """Name what differs between two ``study_mapping``, with both values."""
    old, new = flat_config(before), flat_config(now)
    return [
        f"{key} (was {old.get(key, 'not there')}, now {new.get(key, 'not there')})"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _flat(config: Config) -> dict[str, Any]:
    return {key: value for key, value in flat_config(to_mapping(config)).items() if key not in NOT_KEPT}
