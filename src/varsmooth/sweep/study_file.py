"""Reading a study from TOML, and checking it in full before anything starts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from varsmooth.config import HINTS, checked, override, parse_toml, read_toml, with_values
from varsmooth.errors import InputError, check_choice, nearest
from varsmooth.experiment import from_anywhere
from varsmooth.fleet.trials import NAME, SPENT_FILE
from varsmooth.recipe import load_recipe
from varsmooth.sweep.space import Choice, Range, Space, flattened, grid_size, holds, parse_space
from varsmooth.sweep.storage import FILE, NOTE
from varsmooth.sweep.study import Arm, Budget, Mapped, Pruner, PrunerKind, Sampler, SamplerKind, Study
from varsmooth.text.named import DESCRIPTIONS

KEYS = ("name", "data", "base", "budget", "sampler", "pruner", "seeds", "space", "arms")
ARM_KEYS = ("name", "recipe", "set", "space")
OF_THE_SWEEP = (FILE, NOTE, SPENT_FILE)
MOST_COMBINATIONS = 4096
MOST_TRIALS = 100_000


def study_names() -> list[str]:
    """Return the packaged studies."""
    return sorted(entry.name.removesuffix(".toml") for entry in _packaged().iterdir() if entry.name.endswith(".toml"))


def load_study(name_or_path: str | Path, settings: Sequence[str] = ()) -> Study:
    """Load a packaged study by its name, or one from a ``.toml`` file; ``settings`` go over its base for every arm."""
    name = str(name_or_path)
    if name.endswith(".toml"):
        return parse_study(read_toml(Path(name)), name, Path(name).parent, settings)
    if name not in study_names():
        hint = nearest(name, study_names()) or f"; there are {', '.join(study_names())}; a file must end in .toml"
        raise InputError(f"unknown study {name!r}{hint}")
    return parse_study(parse_toml(_packaged().joinpath(f"{name}.toml").read_text("utf-8"), name), name, Path(), settings)


def parse_study(table: Mapped, source: str, folder: Path, settings: Sequence[str] = ()) -> Study:
    """Check a study and build it; recipes and data that are files are looked for from ``folder``."""
    _check_keys(table, KEYS, source)
    name = _name(table.get("name"), f"{source}: name")
    sampler = _options(Sampler, table.get("sampler", "tpe"), get_args(SamplerKind), f"{source}: sampler")
    pruner = _options(Pruner, table.get("pruner", "none"), get_args(PrunerKind), f"{source}: pruner")
    if pruner.factor < 2:
        raise InputError(f"{source}: pruner.factor must be at least 2, got {pruner.factor}")
    common, base = parse_space(table.get("space", {}), f"{source}: space"), flattened(table.get("base", {}), f"{source}: base")
    if "data" in table:
        base["data.name"] = _data(table["data"], folder, f"{source}: data")
    entries = table.get("arms")
    if not isinstance(entries, list) or not entries:
        raise InputError(f'{source}: arms: needs at least one [[arms]] with a recipe, such as recipe = "vanilla"')
    budget = _budget(table.get("budget"), f"{source}: budget")
    if base.setdefault("train.steps", budget.steps) != budget.steps:
        raise InputError(f"{source}: base: train.steps is {base['train.steps']}, and budget.steps {budget.steps}; leave it out")
    arms = [_arm(entry, base, common, settings, f"{source}: arm {number}", folder) for number, entry in enumerate(entries, 1)]
    _check_arms(arms, source)
    if sampler.kind == "grid":
        budget = _grid_budget(budget, arms, source)
    elif budget.trials is None and budget.minutes is None and budget.total_steps is None:
        raise InputError(f"{source}: budget: needs trials, total_steps or minutes, for each arm")
    seeds = _seeds(table.get("seeds", []), f"{source}: seeds")
    _check_seeds(seeds, arms, f"{source}: seeds")
    return Study(name, budget, sampler, pruner, seeds, tuple(arms))


def _arm(entry: Any, base: Mapped, common: Space, settings: Sequence[str], source: str, folder: Path) -> Arm:
    if not isinstance(entry, Mapping):
        raise InputError(f"{source}: must be a table with a recipe, got {entry!r:.80}")
    _check_keys(entry, ARM_KEYS, source)
    recipe = entry.get("recipe")
    if not isinstance(recipe, str):
        raise InputError(f"{source}: recipe must be a recipe's name or the path of a .toml file, in quotes")
    name = _name(entry.get("name", recipe.removesuffix(".toml").replace("/", "-")), f"{source}: name")
    own = flattened(entry.get("set", {}), f"{source}: set")
    space = {**common, **parse_space(entry.get("space", {}), f"{source}: space")}
    for where, keys in (("set", own), ("space", space)):
        if unequal := [key for key in keys if key == "train.steps" or key.startswith("data.")]:
            raise InputError(
                f"{source}: {where}: {unequal[0]} must be the same for every arm and trial; put it under base or budget"
            )
    if searched := [key for key in (setting.partition("=")[0].strip() for setting in settings) if key in space]:
        raise InputError(f"--set {searched[0]}: the study searches over it; change its space, or leave this out")
    try:
        config = load_recipe(folder / recipe if recipe.endswith(".toml") else recipe)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    config = override(with_values(config, {**base, **own}, source), settings)
    if config.train.steps != base["train.steps"]:
        raise InputError("--set train.steps: the steps of a trial are part of the study's budget; change budget.steps")
    arm = Arm(name, from_anywhere(replace(config, name=name)), space)
    _check_values(arm, source)
    return arm


def _check_values(arm: Arm, source: str) -> None:
    """Refuse values that no configuration can have: each end of a range, and the listed values in every combination."""
    for key, found in arm.space.items():
        for value in (found.low, found.high) if isinstance(found, Range) else found.values:
            _check_alone(key, value, f"{source}: space")
    lists = {key: found.values for key, found in arm.space.items() if isinstance(found, Choice)}
    lows = {key: found.low for key, found in arm.space.items() if isinstance(found, Range)}
    for row in itertools.islice(itertools.product(*lists.values()), MOST_COMBINATIONS):
        with_values(arm.config, {**lows, **dict(zip(lists, row, strict=True))}, f"{source}: space")


def _check_alone(key: str, value: Any, source: str) -> None:
    """Check one value by itself, so that the message is about it and nothing else."""
    section, _, name = key.partition(".")
    try:
        checked(key, value, HINTS[section][name])
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _check_arms(arms: list[Arm], source: str) -> None:
    names = [arm.name.casefold() for arm in arms]
    for arm, name in zip(arms, names, strict=True):
        if name in OF_THE_SWEEP or (name.startswith("best-") and name.endswith(".toml")):
            raise InputError(f"{source}: an arm is called {arm.name!r}, as a file of the sweep itself; give it another name")
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(f"{source}: two arms are called {arms[number].name!r}; give each a name of its own")
    wanted = asdict(arms[0].config.data)
    for arm in arms[1:]:
        for key, value in asdict(arm.config.data).items():
            if value != wanted[key]:
                raise InputError(
                    f"{source}: the arms {arms[0].name!r} and {arm.name!r} have other texts, as their recipes say: "
                    f"data.{key} is {wanted[key]!r} and {value!r}; put data or data.{key} under base, for all"
                )


def _grid_budget(budget: Budget, arms: list[Arm], source: str) -> Budget:
    """The grid of every arm must be as large as the budget says, so that all are tuned alike."""
    for arm in arms:
        for key, found in arm.space.items():
            if isinstance(found, Range) and found.step is None:
                raise InputError(f"{source}: arm {arm.name!r}: {key}: a grid needs a list of values, or a range with a step")
    sizes = {arm.name: grid_size(arm.space) for arm in arms}
    wanted = budget.trials or next(iter(sizes.values()))
    for name, size in sizes.items():
        if size != wanted:
            raise InputError(
                f"{source}: arm {name!r} has a grid of {size}, and the budget of every arm is {wanted} trials: "
                "make the grids equal, or sample with tpe or random"
            )
    return replace(budget, trials=wanted)


def _budget(table: Any, source: str) -> Budget:
    if not isinstance(table, Mapping):
        raise InputError(f"{source}: is missing: a table such as budget = {{trials = 24, steps = 2000}}, for each arm")
    _check_keys(table, ("trials", "steps", "total_steps", "minutes"), source)
    if "steps" not in table:
        raise InputError(f"{source}: steps is missing: how many steps each trial trains")
    counts = {key: _count(table[key], f"{source}: {key}") for key in ("trials", "steps", "total_steps") if key in table}
    minutes = table.get("minutes")
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < 1e9):
        raise InputError(f"{source}: minutes must be a number above 0, got {minutes!r:.80}")
    if counts.get("total_steps", counts["steps"]) < counts["steps"]:
        raise InputError(f"{source}: total_steps is less than the {counts['steps']} steps of one trial")
    return Budget(counts["steps"], counts.get("trials"), None if minutes is None else float(minutes), counts.get("total_steps"))


def _options(kind: Any, value: Any, kinds: Sequence[str], source: str) -> Any:
    """Read ``"tpe"``, or a table with ``kind`` and options."""
    table = value if isinstance(value, Mapping) else {"kind": value}
    known = [key for key in kind.__dataclass_fields__ if key != "kind"]
    _check_keys(table, ("kind", *known), source)
    chosen = table.get("kind", kind.kind)
    check_choice(f"{source}: kind" if isinstance(value, Mapping) else source, str(chosen), kinds)
    return kind(chosen, **{key: _option(table[key], getattr(kind, key), f"{source}.{key}") for key in known if key in table})


def _option(value: Any, default: bool | int, source: str) -> bool | int:
    """Check a whole number, or one of true and false, which 1 and 0 stand for, too."""
    if isinstance(default, bool):
        if not isinstance(value, int) or value not in (0, 1):
            raise InputError(f"{source} must be true or false, got {value!r:.80}")
        return bool(value)
    if type(value) is not int or value < 0:
        raise InputError(f"{source} must be a whole number, 0 or more, got {value!r:.80}")
    return value


def _seeds(value: Any, source: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(seed) is int and 0 <= seed < 2**32 for seed in value):
        raise InputError(f"{source}: must be a list of whole numbers, 0 or more, such as [1, 2, 3]; got {value!r:.80}")
    return tuple(dict.fromkeys(value))


def _check_seeds(seeds: Sequence[int], arms: Sequence[Arm], source: str) -> None:
    """Refuse a seed of the trials: the best of them was chosen for its luck with that seed, which no mean should hold."""
    for arm in arms:
        searched = arm.space.get("train.seed")
        for seed in seeds:
            if searched is not None and holds(searched, seed):
                raise InputError(
                    f"{source}: {seed} is among the seeds that arm {arm.name!r} searches, by which its best is chosen: "
                    "choose other seeds, or take it out of the space of train.seed"
                )
            if searched is None and seed == arm.config.train.seed:
                raise InputError(
                    f"{source}: {seed} is the seed of the trials of arm {arm.name!r}, by which its best is chosen: "
                    "choose other seeds, or put another train.seed for the trials under base"
                )


def _count(value: Any, source: str) -> int:
    if type(value) is not int or value < 1 or (value > MOST_TRIALS and source.endswith("trials")):
        raise InputError(f"{source} must be a whole number of at least 1, got {value!r:.80}")
    return value


def _name(value: Any, source: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InputError(f"{source} must be text of letters, digits and -._+=,@, which can name a folder; got {value!r:.80}")
    return value


def _data(value: Any, folder: Path, source: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{source} must be a data set's name or a folder, got {value!r:.80}")
    return value if value in DESCRIPTIONS else str(folder / value)


def _check_keys(table: Mapped, known: Sequence[str], source: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{source}: unknown key {key!r}{nearest(key, known) or '; the keys are ' + ', '.join(known)}")


def _packaged() -> Any:
    return files("varsmooth").joinpath("recipes", "studies")
