"""From the runs of a sweep to chosen values: every run below a folder is a trial of the row that it is named after."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from varsmooth.config import flat_config, to_mapping
from varsmooth.errors import InputError
from varsmooth.fleet.trials import SPENT_FILE, seconds_of
from varsmooth.recipe import load_recipe
from varsmooth.report.runs import RunSummary, load_run
from varsmooth.reproduce.catalogue import SIZES, CorpusPlan, Setting, Values
from varsmooth.reproduce.chosen import Choice, Key, TuningTrial, best_of, read_chosen, write_chosen
from varsmooth.reproduce.matching import is_of_text
from varsmooth.reproduce.running import SPENT, replace_line

NOT_TUNED = ("name", "data.", "evaluate.")
ENDED = ("finished", "pruned", "failed")
NO_FAULT_OF_ITS_VALUES = ("disk full", "out of memory", "process lost")
HOW_LONG = frozenset(
    f"train.{key}"
    for key in ("seed", "steps", "save_every", "eval_every", "patience", "device", "threads", "engine", "precision")
)
"""What a short trial differs in from the final run without having been chosen."""


def choose_below(folder: Path, plan: CorpusPlan, setting: Setting, path: Path) -> dict[Key, Choice]:
    """Choose among the runs below ``folder``, a sweep's, as ``choose`` does, and note what they have cost."""
    if not folder.is_dir():
        raise InputError(f"--choose-from {folder}: there is no such folder")
    found = choose([record.parent for record in folder.rglob("record.json")], plan, setting, path, f"--choose-from {folder}")
    if not found:
        raise InputError(f"--choose-from {folder}: none of the longest trials has a development perplexity to choose by")
    if seconds := sum(seconds_of(spent.parent) for spent in folder.rglob(SPENT_FILE)):
        note_tuning(path.with_name(SPENT), folder, setting, seconds)
    return found


def choose(runs: Iterable[Path], plan: CorpusPlan, setting: Setting, path: Path, source: str) -> dict[Key, Choice]:
    """Choose for each row the best of the trials in these run folders and of those before them, and write that to ``path``.

    What was chosen for others stays, and so does what was chosen for a row whose longest trials all failed. ``source`` is what
    a complaint names.
    """
    earlier = read_chosen(path).choices
    trials = trials_in(runs, plan, setting, source)
    best = {key: best_of(_joined(earlier.get(key), new)) for key, new in trials.items()}
    found = {key: choice for key, choice in best.items() if choice is not None}
    write_chosen(path, {**earlier, **found})
    return found


def _joined(earlier: Choice | None, trials: tuple[TuningTrial, ...]) -> tuple[TuningTrial, ...]:
    """Trials after those of an earlier choice; the same trial, found again, takes the place that it had."""
    known = {_key_of(trial): trial for trial in (earlier.trials if earlier else ())}
    return tuple((known | {_key_of(trial): trial for trial in trials}).values())


def _key_of(trial: TuningTrial) -> tuple[str, int]:
    return repr(sorted(trial.set.items())), trial.steps


def note_tuning(path: Path, folder: Path, setting: Setting, seconds: float) -> None:
    """Add what a fleet of trials has cost to what was spent; a folder that is chosen from again replaces its line."""
    records = [load_run(record.parent).record for record in sorted(folder.rglob("record.json"))]
    hardware = next((found["hardware"].get("name") for found in records if found.get("hardware")), None)
    ended = sum(record.get("status") == "finished" for record in records)
    groups = [f"tuning-{setting}-{folder.name}"]
    line = {"groups": groups, "runs": len(records), "finished": ended, "seconds": seconds, "hardware": hardware}
    replace_line(path, line, "groups")


def trials_in(folders: Iterable[Path], plan: CorpusPlan, setting: Setting, source: str) -> dict[Key, tuple[TuningTrial, ...]]:
    """Return the trials of each row and size; other runs are passed over."""
    runs: dict[Key, list[RunSummary]] = {}
    for folder in sorted(folders):
        run = load_run(folder)
        if (key := _key(run, plan, setting)) is None:
            continue
        if run.status not in ENDED:
            raise InputError(f"{source}: {run.path.name} has not ended ({run.status}); go on with the sweep first")
        if run.status == "failed" and (why := run.record.get("stopped_because")) in NO_FAULT_OF_ITS_VALUES:
            raise InputError(f"{source}: {run.path.name} failed ({why}), which says nothing of its values; train it again")
        if not is_of_text(run.record, plan.name):
            raise InputError(f"{source}: {run.path.name} was trained on another copy of {plan.name}")
        runs.setdefault(key, []).append(run)
    if not runs:
        raise InputError(f"{source}: holds no run of a row of {plan.name}; name the arms of a study as the rows are")
    found = {key: _trials(members, plan.name, key) for key, members in runs.items()}
    for (_, _, row), trials in found.items():
        if setting == "paper" and any(name.startswith("dropout.") for trial in trials for name in trial.set):
            raise InputError(f"{source}: trials of {row} differ in dropout; say --setting tuned")
    return found


def _key(run: RunSummary, plan: CorpusPlan, setting: Setting) -> Key | None:
    row, size = run.recipe.partition("/")[0], (run.record.get("config") or {}).get("model", {}).get("hidden")
    known = row in [each.name for each in plan.rows] and size in SIZES and run.data_name == plan.name
    return (setting, int(size), row) if known else None


def _trials(runs: list[RunSummary], corpus: str, key: Key) -> tuple[TuningTrial, ...]:
    """Return a trial for each set of values and length; runs that differ by seed alone are averaged."""
    recipe = flat_config(to_mapping(load_recipe(f"{key[2]}/{corpus}-{key[1]}")))
    alike: dict[str, list[tuple[TuningTrial, float | None]]] = {}
    for run in runs:
        values = _changes(recipe, run)
        # Where a run failed, or patience ended it, its steps say how far it came, and not with whom it is to be compared.
        planned = (run.record.get("config") or {}).get("train", {}).get("steps")
        steps = run.record.get("steps") if run.status == "pruned" else planned
        trial, figure = TuningTrial(values, int(steps or 0), None), None if run.status == "failed" else run.best_valid
        alike.setdefault(repr((sorted(values.items()), trial.steps)), []).append((trial, figure))
    trials = []
    for members in alike.values():
        figures = [figure for _, figure in members if figure is not None]
        trial = members[0][0]
        # Values with which one seed fails are no good with the others.
        trials.append(TuningTrial(trial.set, trial.steps, statistics.fmean(figures) if len(figures) == len(members) else None))
    return tuple(trials)


def _changes(recipe: Mapping[str, Any], run: RunSummary) -> Values:
    """Return in what a run differs from its recipe, as far as that can be chosen."""
    own = flat_config(run.record.get("config") or {})
    return {
        key: value
        for key, value in own.items()
        if key in recipe and recipe[key] != value and key not in HOW_LONG and not key.startswith(NOT_TUNED)
    }
