"""What a fleet trains: named configurations, from recipes and seeds or from a file, and the list that its folder keeps."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varsmooth.config import Config, config_from_mapping, override, to_mapping, with_values
from varsmooth.errors import InputError, nearest
from varsmooth.experiment import from_anywhere
from varsmooth.files import write_atomically
from varsmooth.recipe import load_recipe
from varsmooth.train.folder import full_disk_named

FLEET_FORMAT = "varsmooth.fleet.1"
FLEET_FILE = "fleet.json"
SPENT_FILE = "spent.json"
KEYS = ("name", "recipe", "set", "seed", "data")
NAME = re.compile(r"\w[\w.+=,@-]*")
"""What serves as a folder's name everywhere: it is not hidden, and holds no separator and no space."""

LONGEST_NAME = 255
"""Bytes that file systems take."""


@dataclass(frozen=True)
class Trial:
    """One run of a fleet; its folder has its name."""

    name: str
    config: Config


def write_list(path: Path, trials: Sequence[Trial]) -> None:
    """Keep the list in the folder of a fleet, with each configuration in full: a recipe may change before it is resumed."""
    listed = [{"name": trial.name, "config": to_mapping(trial.config)} for trial in trials]
    text = json.dumps({"format": FLEET_FORMAT, "trials": listed}, indent=1, ensure_ascii=False, allow_nan=False)
    with full_disk_named(path / FLEET_FILE):
        write_atomically(path / FLEET_FILE, f"{text}\n".encode())


def read_list(path: Path) -> list[Trial]:
    """Read the list back from the folder of a fleet."""
    source = path / FLEET_FILE
    content = _parsed(source)
    if not isinstance(content, dict) or content.get("format") != FLEET_FORMAT:
        raise InputError(f"{source}: not the list of a fleet of this version ({FLEET_FORMAT!r})")
    try:
        pairs = [(entry["name"], dict(entry["config"])) for entry in content["trials"]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{source}: not a list of trials, each with a name and a config") from None
    trials = [Trial(name, config_from_mapping(config, f"{source}: {name!r}")) for name, config in pairs]
    return _checked(trials, str(source))


@contextmanager
def spending(path: Path) -> Iterator[None]:
    """Keep in ``path``, the folder of a fleet or of a sweep, how long this block took, added to what was spent before."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds = round(seconds_of(path) + time.monotonic() - began, 1)
        with suppress(OSError):  # a full disk is told of by the runs
            write_atomically(path / SPENT_FILE, json.dumps({"seconds": seconds}).encode())


def seconds_of(path: Path) -> float:
    """How long the fleet or sweep in ``path`` has trained, 0 where nothing says so."""
    try:
        return float(json.loads((path / SPENT_FILE).read_bytes())["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def is_fleet(path: Path) -> bool:
    """Whether ``path`` is the folder of a fleet."""
    return (path / FLEET_FILE).is_file()


def recipe_trials(recipes: Iterable[str], seeds: Sequence[int], settings: Sequence[str]) -> list[Trial]:
    """Return a trial for each recipe and seed, called RECIPE-seedN; without seeds, one for each recipe with its own seed."""
    trials = []
    for recipe in recipes:
        if recipe.endswith(".json"):
            raise InputError(f"--fleet takes recipes or one .json file alone, got {recipe} among others")
        config = override(load_recipe(recipe), settings)
        seeded = [override(config, [f"train.seed={seed}"]) for seed in seeds] or [config]
        trials += [Trial(_default_name(each), from_anywhere(each)) for each in seeded]
    return _checked(trials, "--fleet")


def read_trials(path: Path, settings: Sequence[str]) -> list[Trial]:
    """Read a .json file with a list of trials; ``settings`` come over those of the file."""
    content = _parsed(path)
    if not isinstance(content, list) or not content:
        raise InputError(f'{path}: must hold a list of trials such as [{{"recipe": "vanilla", "seed": 2}}]')
    trials = [_trial(entry, f"{path}, trial {number}", path.parent) for number, entry in enumerate(content, start=1)]
    return _checked([Trial(trial.name, from_anywhere(override(trial.config, settings))) for trial in trials], str(path))


def _trial(entry: Any, source: str, folder: Path) -> Trial:
    """Return one trial of a file; a recipe's file is looked for from ``folder``, as the base of a recipe is."""
    if not isinstance(entry, dict):
        raise InputError(f"{source}: must be an object with keys such as recipe and seed, got {entry!r:.80}")
    for key in entry:
        if key not in KEYS:
            raise InputError(f"{source}: unknown key {key!r}{nearest(key, KEYS) or '; the keys are ' + ', '.join(KEYS)}")
    recipe, changes = entry.get("recipe"), entry.get("set", {})
    if not isinstance(recipe, str):
        raise InputError(f"{source}: recipe must be a recipe's name or the path of a .toml file, in quotes")
    if not isinstance(changes, dict):
        raise InputError(f'{source}: set must be an object such as {{"train.lr": 0.002}}, got {changes!r:.80}')
    if "name" in entry and not isinstance(entry["name"], str):
        raise InputError(f"{source}: name must be text, got {entry['name']!r:.80}")
    own = {full: entry[key] for key, full in (("seed", "train.seed"), ("data", "data.name")) if key in entry}
    try:
        config = load_recipe(folder / recipe if recipe.endswith(".toml") else recipe)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    config = with_values(config, {**changes, **own}, source)
    return Trial(entry.get("name", _default_name(config)), config)


def _default_name(config: Config) -> str:
    return f"{config.name.replace('/', '-')}-seed{config.train.seed}"


def _checked(trials: list[Trial], source: str) -> list[Trial]:
    """Refuse names that cannot be folders beside each other."""
    if not trials:
        raise InputError(f"{source}: there is no run to train")
    seen = {FLEET_FILE, SPENT_FILE}
    for trial in trials:
        if not isinstance(trial.name, str) or not NAME.fullmatch(trial.name) or len(trial.name.encode()) > LONGEST_NAME:
            told = f"{trial.name!r:.80} cannot name a run's folder"
            raise InputError(f"{source}: {told}; use letters, digits and -._+=,@, up to {LONGEST_NAME} bytes")
        # Some file systems take no account of case.
        if trial.name.casefold() in seen:
            raise InputError(f"{source}: the name {trial.name!r} is taken; every run needs its own")
        seen.add(trial.name.casefold())
    return trials


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
