"""Trials for a machine without the database: asked for here, trained there as a fleet, and told of afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varsmooth.config import Config, flat_config, to_mapping
from varsmooth.errors import InputError
from varsmooth.recipe import load_recipe, recipe_names
from varsmooth.sweep.board import CODE, DATA, Board, refuse_other_code, refuse_other_data
from varsmooth.sweep.claims import Claims
from varsmooth.sweep.outcomes import curve_of, outcome_of, refuse_other_settings
from varsmooth.sweep.sampling import rounded
from varsmooth.sweep.stage import Stage
from varsmooth.sweep.ticket import RUN, SECONDS, SLOT, Ticket
from varsmooth.train.folder import RunFolder
from varsmooth.train.record import Record

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

NOT_THE_TRIALS = ("input", "disk full", "process lost")
"""Failures of the machine, as where its text is missing: once they are mended, the run can go on."""


@dataclass(frozen=True)
class Told:
    """What was made of a run: ``counted``, ``counted before``, ``not asked for``, or ``unfinished``: its slot stays open."""

    run: str
    outcome: str
    valid_perplexity: float | None = None
    reason: str | None = None


def ask(board: Board, claims: Claims, number: int) -> list[dict[str, Any]]:
    """Claim up to ``number`` slots and return them as the list that ``varsmooth train --fleet`` reads."""
    if number < 1:
        raise InputError(f"the number of trials to ask for must be at least 1, got {number}")
    entries: list[dict[str, Any]] = []
    while len(entries) < number and (ticket := board.claim(claims, asked=True)) is not None:
        entries.append(_entry(ticket.name, ticket.config))
    return entries


def ask_again(board: Board) -> list[dict[str, Any]]:
    """Return once more what was asked for and not told of, for a list that was lost."""
    return [
        _entry(stage.run_name(trial.user_attrs[SLOT]), stage.config(_params(stage, trial))) for stage, trial in board.asked()
    ]


def tell(board: Board, folders: Sequence[Path]) -> list[Told]:
    """Record the results of runs that were asked for; each counts once, however often it is told."""
    if not folders:
        raise InputError("no folder is named: give the one that varsmooth train --fleet made")
    runs = [run for folder in folders for run in _runs_in(folder)]
    if not runs:
        raise InputError(f"no runs in {', '.join(map(str, folders))}: name the folder that varsmooth train --fleet made")
    slots = {stage.run_name(slot): (stage, slot) for stage in board.stages() for slot in stage.wanted()}
    identity = board.identity()
    found = [(run, *_slot_of(run, slots), _checked(run, identity)) for run in runs]
    for run, stage, slot, record in found:  # all before the first is counted
        if (trial := _asked(stage, slot)) is not None:
            refuse_other_settings(run, record.get("config") or {}, stage.config(_params(stage, trial)))
    return [_tell(run, stage, slot, record) for run, stage, slot, record in found]


def _asked(stage: Stage, slot: int) -> FrozenTrial | None:
    """The trial of a slot that was asked for and not told of."""
    return next((trial for trial in stage.asked() if trial.user_attrs[SLOT] == slot), None)


def _tell(run: Path, stage: Stage, slot: int, record: Record) -> Told:
    outcome, trial = outcome_of(record), _asked(stage, slot)
    best = (record.get("best") or {}).get("valid_perplexity")
    if slot in stage.outcomes():
        return Told(run.name, "counted before", best, record.get("reason"))
    if trial is None:
        return Told(run.name, "not asked for", best, "its slot waits, or a worker of the study trains it")
    if outcome is None or record.get("stopped_because") in NOT_THE_TRIALS:
        return Told(run.name, "unfinished", reason=record.get("reason"))
    config = stage.config(_params(stage, trial))
    opened = stage.store.attempt(stage.store.optuna.trial.Trial, stage.optuna_study, trial._trial_id)
    ticket = Ticket(stage, slot, opened, config, None, float(record.get("seconds") or 0.0), set(trial.intermediate_values))
    stage.report(ticket, curve_of(RunFolder(run)))
    state, value, notes = outcome
    stage.tell(ticket, state, value, {**notes, SECONDS: ticket.seconds, RUN: str(run.absolute())})
    return Told(run.name, "counted", best, record.get("reason"))


def _runs_in(folder: Path) -> list[Path]:
    """A run's folder, or the runs in the folder of a fleet."""
    if RunFolder(folder).record_path.is_file():
        return [folder]
    try:
        return sorted(path for path in folder.iterdir() if RunFolder(path).record_path.is_file())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror or error}") from None


def _slot_of(run: Path, slots: Mapping[str, tuple[Stage, int]]) -> tuple[Stage, int]:
    if run.name not in slots:
        raise InputError(f"{run}: no trial of this study has that name; it must be as varsmooth sweep ask wrote it")
    return slots[run.name]


def _checked(run: Path, identity: Mapping[str, Any]) -> Record:
    """Return a run's record, if it was made with the study's code and text; one that was never built says neither."""
    record = RunFolder(run).read_record()
    if "versions" in record:
        code = {"varsmooth": record["versions"].get("varsmooth"), "commit": record.get("commit")}
        refuse_other_code(code, identity[CODE], f"{run}: its machine")
        refuse_other_data(record["data"]["checksums"], identity[DATA], str(run))
    return record


def _entry(name: str, config: Config) -> dict[str, Any]:
    """One trial of the list: a packaged recipe, and whatever differs from it."""
    recipe = config.name if config.name in recipe_names() else "vanilla"
    base = flat_config(to_mapping(load_recipe(recipe)))
    changes = {key: value for key, value in flat_config(to_mapping(config)).items() if value != base[key]}
    return {"name": name, "recipe": recipe, "set": changes}


def _params(stage: Stage, trial: Any) -> dict[str, Any]:
    return rounded(trial.params, stage.space)
