"""Optuna's samplers and pruners as a study asks for them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from varsmooth.config import Config
from varsmooth.sweep.space import DIGITS, Choice, Space, finite_size, point_at, recipe_point
from varsmooth.sweep.study import Pruner, Sampler

if TYPE_CHECKING:
    import optuna

MOST_POINTS = 10_000


def seeded_sampler(optuna: Any, options: Sampler, site: str) -> Any:
    """A sampler whose choices are a function of the study's seed, the ``site`` and the trials before it."""
    digest = hashlib.sha256(f"{options.seed} {site}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if options.kind == "tpe":
        return optuna.samplers.TPESampler(n_startup_trials=options.startup_trials, seed=seed, constant_liar=True)
    return optuna.samplers.RandomSampler(seed=seed)


def first_points(options: Sampler, config: Config, space: Space, seed: str) -> list[dict[str, Any]]:
    """What the first trials have, as far as the study and not the sampler decides that: the recipe's values, distinct ones."""
    first = [recipe_point(config, space)] if options.recipe_first else []
    if not options.distinct or (size := finite_size(space)) is None:
        return first
    wanted = size if options.kind == "random" else options.startup_trials
    # One more, because the recipe's may be among them.
    places = random.Random(seed).sample(range(size), min(size, wanted + 1, MOST_POINTS))
    others = [point for place in places if (point := point_at(space, place)) not in first]
    return [*first, *others][: max(wanted, len(first))]


def rounded(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Parameters as they are used: a range's steps without the noise of binary fractions."""
    return {key: _rounded(space[key], value) for key, value in params.items()}


def _rounded(dimension: Any, value: Any) -> Any:
    stepped = not isinstance(dimension, Choice) and dimension.step is not None and not dimension.whole
    return round(value, DIGITS) if stepped else value


def suggest(trial: optuna.Trial, key: str, space: Space) -> Any:
    """Ask the sampler for a parameter, or for the value that the trial has."""
    found = space[key]
    if isinstance(found, Choice):
        return trial.suggest_categorical(key, found.values)
    if found.whole:
        return trial.suggest_int(key, int(found.low), int(found.high), step=int(found.step or 1), log=found.log)
    return _rounded(found, trial.suggest_float(key, found.low, found.high, step=found.step, log=found.log))


def pruner_of(optuna: Any, options: Pruner) -> Any:
    """Optuna's pruner of the kind that a study asks for."""
    if options.kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=options.startup_trials, n_warmup_steps=options.warmup_steps)
    if options.kind == "halving":
        least = options.min_steps or "auto"
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=options.factor)
    return optuna.pruners.NopPruner()
