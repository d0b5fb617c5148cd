"""What a sweep came to, as a table in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from varsmooth.cli.output import OutputConsole, figure
from varsmooth.experiment.seeds import shown_spread
from varsmooth.sweep import StudySummary


def print_summary(found: StudySummary, console: Console) -> None:
    state = "through" if found.finished else "under way"
    console.print(f"{found.study}: {state}, sampled by {found.sampler}, pruned by {found.pruner}", highlight=False)
    console.print(f"the budget of each arm: {found.budget_text()}", highlight=False)
    headings = ("arm", "trials", "steps", "minutes", "best valid", "seeds: valid", "seeds: test")
    rows = []
    for arm in found.arms:
        used, given, best = arm.used, arm.budget, arm.best
        others = ", ".join(f"{used[state]} {state}" for state in ("pruned", "failed", "open") if used[state])
        trials = f"{used['trials']} of {given['trials'] or 'any'}" + (f" ({others})" if others else "")
        minutes = f"{used['minutes']:.1f}" + (f" of {given['minutes']:g}" if given["minutes"] else "")
        steps = f"{used['steps']:,}" + (f" of {given['total_steps']:,}" if given["total_steps"] else "")
        seeds = [shown_spread(item, len(arm.seeds)) for item in (arm.seeds_valid, arm.seeds_test)]
        rows.append((arm.arm, trials, steps, minutes, figure(best.valid_perplexity if best else None), *seeds))
    print_table(headings, rows, console)
    for arm in found.arms:
        if arm.best:
            console.print(f"{arm.arm}, {arm.best.trial}: {_listed(arm.best.params)}", highlight=False, soft_wrap=True)
        mattered = _listed({key: f"{value:.2f}" for key, value in arm.importance.items()}) if arm.importance else None
        console.print(f"  importance: {mattered or arm.importance_missing}", highlight=False, soft_wrap=True)


def print_table(headings: Iterable[str], rows: Iterable[tuple[str, ...]], console: Console | None = None) -> None:
    table = Table()
    for number, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    (console or OutputConsole()).print(table)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}" for key, value in values.items()
    )
