"""varsmooth train, for many runs: its options, and how a fleet's end is told"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from varsmooth.cli.app import FAILED, errors
from varsmooth.cli.options import parse_whole_numbers
from varsmooth.cli.output import figure
from varsmooth.errors import InputError
from varsmooth.fleet import FleetOutcome, TimeLimit, Trial, read_trials, recipe_trials
from varsmooth.train.record import result_of


def parse_trials(fleet: list[str], seeds: str | None, settings: list[str]) -> list[Trial]:
    """Return the trials that ``--fleet`` and ``--seeds`` ask for, over which ``settings`` are put."""
    if len(fleet) == 1 and fleet[0].endswith(".json"):
        if seeds is not None:
            raise InputError(f"--seeds goes with recipes; in {fleet[0]} every trial has its own seed")
        return read_trials(Path(fleet[0]), settings)
    return recipe_trials(fleet, parse_whole_numbers("--seeds", seeds, "1,2,3"), settings)


def parse_limit(minutes: float | None, within: float | None) -> TimeLimit | None:
    """Return the limit that the two options ask for."""
    if minutes is None and within is not None:
        raise InputError("--within goes with --minutes: say after how many minutes to stop")
    return None if minutes is None else TimeLimit(minutes, within)


def report_fleet(outcome: FleetOutcome, out: Path, at_once: int | None, console: Console, as_json: bool) -> int:
    """Say how a fleet ended; return the exit status."""
    if as_json:
        print(json.dumps(outcome.records))
    else:
        console.print(_table(outcome.records))
    failed = sum(record["status"] == "failed" for record in outcome.records)
    again = shlex.join(["varsmooth", "train", "--resume", str(out), *(["--at-once", str(at_once)] if at_once else [])])
    if outcome.signal is not None:
        errors.print(f"varsmooth: stopped; to go on: {again}")
        return 128 + outcome.signal
    if outcome.out_of_time:
        errors.print(f"varsmooth: the time is up; to go on: {again}")
    if failed:
        errors.print(f"varsmooth: {failed} of {len(outcome.records)} runs failed; record.json in each one's folder says why")
        return FAILED
    return 0


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table(caption="test: by the recipe's own prediction; ms/step: the other runs' turns included")
    table.add_column("run", overflow="fold")
    table.add_column("status")
    for heading in ("best valid", "test", "by", "ms/step"):
        table.add_column(heading, justify="right")
    for record in records:
        test = result_of(record, "test") or {}
        best = record.get("best", {}).get("valid_perplexity")
        figures = (figure(best), figure(test.get("perplexity")), test.get("predict", ""), figure(record.get("ms_per_step")))
        table.add_row(record["name"], record["status"], *figures)
    return table
