"""The values that tuning chose for each row, with the trials that it chose from: ``chosen.toml`` of a corpus.

format = "varsmooth.chosen.1"

[tuned.512.vanilla]
set = {"train.lr" = 0.003, "dropout.tables" = 0.6}

[[tuned.512.vanilla.trials]]
set = {"train.lr" = 0.002, "dropout.tables" = 0.5}
steps = 13500
valid_perplexity = 71.2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from varsmooth.config import literal, read_toml
from varsmooth.errors import InputError, check_choice
from varsmooth.files import write_atomically
from varsmooth.reproduce.catalogue import SETTINGS, SIZES, Setting, Values
from varsmooth.text.reading import exists

Key: TypeAlias = tuple[Setting, int, str]
"""Setting, size and row."""
FORMAT = "varsmooth.chosen.1"
FILE = "chosen.toml"
NOT_INHERITED = ("dropout.tables", "train.lr")
"""What a larger model does not take from the smaller one: the paper, too, gives it other dropout, and with the learning rate
that is best for 512 units, 0.004, two rows of 1024 diverged."""


@dataclass(frozen=True)
class TuningTrial:
    """One trial: what it changed in the recipe, how long it trained, and its best development perplexity (None: it failed)."""

    set: Values
    steps: int
    valid_perplexity: float | None


@dataclass(frozen=True)
class Choice:
    """The chosen values of a row, over those of its recipe."""

    set: Values
    trials: tuple[TuningTrial, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The choices of a corpus, by setting, size and row."""

    source: str
    choices: Mapping[Key, Choice]

    def values(self, setting: Setting, size: int, row: str) -> Values:
        """Return what a row's recipe is changed by; the paper's setting needs nothing, the tuned one must have been tuned."""
        found = self.choices.get((setting, size, row))
        if setting == "tuned" and self._lacking(size, row):
            raise self._untuned(size, row)
        # What was tuned at this size is said in full by its trials, also where it is as in the recipe.
        inherited = {} if found and found.trials else self._inherited(setting, size, row)
        return {**inherited, **(found.set if found else {})}

    def _lacking(self, size: int, row: str) -> int | None:
        """Return the size at which a row is still to be tuned before it has values: without trials it has the smaller one's."""
        found = self.choices.get(("tuned", size, row))
        if found is None:
            return size
        smaller = [each for each in SIZES if each < size]
        if found.trials or not smaller or any(("tuned", each, row) in self.choices for each in smaller):
            return None
        return smaller[-1]

    def _inherited(self, setting: Setting, size: int, row: str) -> Values:
        """Return what a row takes from the next smaller size."""
        smaller = [key for key in self.choices if (key[0], key[2]) == (setting, row) and key[1] < size]
        below = self.choices[max(smaller, key=lambda key: key[1])].set if smaller else {}
        return {key: value for key, value in below.items() if key not in NOT_INHERITED}

    def builds_on(self, setting: Setting, size: int, row: str) -> set[Key]:
        """Return the choices, made or still to be made, that the values of a row come from."""
        own = self.choices.get((setting, size, row))
        sizes = [size] if own and own.trials else [each for each in SIZES if each <= size]
        return {(setting, each, row) for each in sizes}

    def over(self, others: Mapping[Key, Choice]) -> Chosen:
        """Return these choices, and others for rows that have none."""
        return Chosen(self.source, {**others, **self.choices})

    def has_tuned(self, size: int) -> bool:
        """Whether any row was tuned at a size."""
        return bool(self._tuned(size))

    def tuned_rows(self, size: int) -> list[str]:
        """Return the rows that were tuned at a size."""
        rows = self._tuned(size)
        if not rows:
            raise self._untuned(size, next(iter(self._of_size(size)), "ROW"))
        return rows

    def _tuned(self, size: int) -> list[str]:
        return [row for row in self._of_size(size) if not self._lacking(size, row)]

    def _of_size(self, size: int) -> list[str]:
        return [row for setting, own, row in self.choices if (setting, own) == ("tuned", size)]

    def _untuned(self, size: int, row: str) -> InputError:
        lacking = self._lacking(size, row)
        why = "" if lacking == size else f", which [tuned.{size}.{row}] builds on"
        how = "tune it on the development set, and write its choice there"
        return InputError(f"{self.source}: has no [tuned.{lacking}.{row}] yet{why}; {how}")


def read_chosen(path: Path) -> Chosen:
    """Read a corpus's choices; without the file nothing has been chosen."""
    if not exists(path):
        return Chosen(str(path), {})
    content = read_toml(path)
    if content.pop("format", None) != FORMAT:
        raise InputError(f"{path}: must begin with format = {FORMAT!r}")
    choices: dict[Key, Choice] = {}
    for setting, sizes in content.items():
        check_choice(f"{path}: a setting", setting, SETTINGS)
        for size, rows in _table(sizes, path, setting).items():
            if not size.isdecimal():
                raise InputError(f"{path}: [{setting}.{size}] must name a size, such as [{setting}.512.vanilla]")
            for row, entry in _table(rows, path, f"{setting}.{size}").items():
                known: Setting = "paper" if setting == "paper" else "tuned"
                choices[known, int(size), row] = _choice(entry, path, f"{setting}.{size}.{row}")
    return Chosen(str(path), choices)


def write_chosen(path: Path, choices: Mapping[Key, Choice]) -> None:
    """Write choices so that ``read_chosen`` gives them back."""
    lines = [f'format = "{FORMAT}"']
    for (setting, size, row), choice in choices.items():
        lines += ["", f"[{setting}.{size}.{row}]", f"set = {_inline(choice.set)}"]
        for trial in choice.trials:
            lines += [f"[[{setting}.{size}.{row}.trials]]", f"set = {_inline(trial.set)}", f"steps = {trial.steps}"]
            lines += [] if trial.valid_perplexity is None else [f"valid_perplexity = {trial.valid_perplexity!r}"]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def best_of(trials: tuple[TuningTrial, ...]) -> Choice | None:
    """Return the choice of the trial with the lowest development perplexity, among those that trained longest.

    None where all of these failed.
    """
    longest = max(trial.steps for trial in trials)
    rivals = [(trial.valid_perplexity, number) for number, trial in enumerate(trials) if trial.steps == longest]
    known = [(figure, number) for figure, number in rivals if figure is not None]
    return Choice(trials[min(known)[1]].set, trials) if known else None


def _choice(entry: Any, path: Path, name: str) -> Choice:
    values = _table(entry, path, name)
    for key in values:
        check_choice(f"{path}: [{name}]: a key", key, ("set", "trials"))
    try:
        trials = tuple(
            TuningTrial(dict(trial["set"]), int(trial["steps"]), trial.get("valid_perplexity"))
            for trial in values.get("trials", [])
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{path}: [{name}]: every trial needs set, steps and, unless it failed, valid_perplexity") from None
    return Choice(_table(values.get("set", {}), path, f"{name}.set"), trials)


def _table(value: Any, path: Path, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} must be a table, got {value!r:.80}")
    return value


def _inline(values: Values) -> str:
    return "{" + ", ".join(f'"{key}" = {literal(value)}' for key, value in values.items()) + "}"
