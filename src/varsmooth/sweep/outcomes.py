"""What a run's folder means for the slot it was trained for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varsmooth.config import WHERE_AND_HOW, Config, flat_config, load_config, to_mapping
from varsmooth.errors import InputError
from varsmooth.sweep.ticket import REASON, STEPS, Ticket
from varsmooth.train.folder import RunFolder
from varsmooth.train.record import Record


def curve_of(folder: RunFolder) -> list[tuple[int, float]]:
    """The development perplexities of a run's evaluations, without those beyond all numbers."""
    lines = [(line["step"], line.get("valid_perplexity")) for line in folder.read_metrics()]
    return [(step, value) for step, value in lines if value is not None and math.isfinite(value)]


def outcome_of(record: Record) -> tuple[str, float | None, dict[str, object]] | None:
    """What a run's record means for its slot: Optuna's state, the value and notes; None where it has not ended."""
    notes: dict[str, object] = {STEPS: record.get("steps") or 0}
    best = (record.get("best") or {}).get("valid_perplexity")
    if record.get("status") == "finished" and best is not None:
        return "COMPLETE", float(best), notes
    if record.get("status") == "pruned":
        return "PRUNED", None, notes
    if record.get("status") == "finished":
        return "FAIL", None, {**notes, REASON: "the development perplexity is beyond all numbers"}
    if record.get("status") == "failed":
        return "FAIL", None, {**notes, REASON: str(record.get("reason") or "unknown")}
    return None


def refuse_another_sweeps(path: Path, ticket: Ticket) -> None:
    """Refuse to go on with, or to count, a run that an earlier sweep left in this folder."""
    try:
        found = load_config(RunFolder(path).config_path)
    except InputError:  # there is none, or it is damaged, which fails its trial alone
        return
    refuse_other_settings(path, to_mapping(found), ticket.config, "; it is of another sweep: choose another --out")


def refuse_other_settings(run: Path, found: Mapping[str, Any], wanted: Config, fix: str = "") -> None:
    """Refuse a run whose configuration, as a mapping of sections, is not the one that was asked for."""
    theirs = flat_config(found)
    for key, value in flat_config(to_mapping(wanted)).items():
        own = theirs.get(key, value)
        if own != value and key != "name" and key not in WHERE_AND_HOW:
            raise InputError(f"{run}: was trained with {key} = {own!r}; the trial asked for {value!r}{fix}")


def given_up(record: Record) -> bool:
    """Whether the pruner stopped the run and nobody has come to say so in the record, as ``marked_pruned`` does."""
    before_there_was_a_word = record.get("signal") == 0
    return record.get("status") == "stopped" and (record.get("stopped_because") == "given up" or before_there_was_a_word)


def ended_before(record: Record) -> bool:
    disk_full = record.get("stopped_because") == "disk full"
    return given_up(record) or (record.get("status") in ("finished", "failed", "pruned") and not disk_full)


def marked_pruned(path: Path, record: Record) -> Record:
    """Say in the record that the run was given up; its state stays, so that it can be resumed all the same."""
    folder = RunFolder(path)
    kept = {key: value for key, value in record.items() if key not in ("signal", "format")}
    folder.write_record({**kept, "status": "pruned", "stopped_because": "pruned"})
    return folder.read_record()
