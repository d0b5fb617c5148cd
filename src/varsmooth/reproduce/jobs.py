"""The runs that a table or an experiment needs: each a configuration with a place for its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from varsmooth.config import Config, with_values
from varsmooth.errors import InputError, check_choice, nearest
from varsmooth.recipe import load_recipe
from varsmooth.reproduce.catalogue import SETTINGS, SIZES, Budget, CorpusPlan, Row, Setting, budget_values, draws_for
from varsmooth.reproduce.chosen import Chosen


@dataclass(frozen=True)
class Job:
    """One run; ``group`` is the table or experiment that it belongs to, ``name`` its place there."""

    corpus: str
    group: str
    name: str
    config: Config
    share: float = 1.0
    """of the training text"""
    alone: bool = False
    """whether it must be a run of its own, because its time is what is asked for"""

    @property
    def trial_name(self) -> str:
        return f"{self.group}-{self.name}"

    def record_folder(self, results: Path) -> Path:
        """Return where its record is kept for good."""
        return results / self.corpus / self.group / self.name


def table_group(size: int, setting: Setting, budget: Budget) -> str:
    """Return the name of a table, which is also that of its folder; quick runs never mix with full ones."""
    if size not in SIZES:
        raise InputError(f"--size must be one of {', '.join(map(str, SIZES))}, got {size}")
    check_choice("--setting", setting, SETTINGS)
    return f"{size}-{setting}" + ("" if budget == "full" else f"-{budget}")


def table_jobs(
    plan: CorpusPlan,
    chosen: Chosen,
    *,
    size: int,
    setting: Setting = "paper",
    budget: Budget = "full",
    rows: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> list[Job]:
    """Return the runs of one table: ``rows`` and ``seeds`` choose, none of them meaning all that are planned."""
    group = table_group(size, setting, budget)
    if setting == "tuned" and not rows:
        rows = chosen.tuned_rows(size)
    ranked = []
    for row in chosen_rows(plan, rows):
        samples = draws_for(plan.name, size, row.name) if setting == "paper" else 0
        values = {**chosen.values(setting, size, row.name), **budget_values(budget), "evaluate.samples": samples}
        base = with_values(
            load_recipe(f"{row.name}/{plan.name}-{size}"), values, f"{chosen.source}, {setting}.{size}.{row.name}"
        )
        for turn, seed in enumerate(seeds or plan.seeds[size]):
            config = with_values(base, {"train.seed": seed}, "--seeds")
            ranked.append(((not row.headline, turn), Job(plan.name, group, f"{row.name}-seed{seed}", config)))
    # Where time may be up before the rest: what the headline shows comes first, and of it one seed of every row.
    return [job for _, job in sorted(ranked, key=lambda pair: pair[0])]


def chosen_rows(plan: CorpusPlan, names: Sequence[str]) -> list[Row]:
    """Return the rows with these names, in the table's order."""
    known = [row.name for row in plan.rows]
    for name in names:
        if name not in known:
            raise InputError(f"--rows: {name!r} is no row for {plan.name}{nearest(name, known)}; rows: {', '.join(known)}")
    return [row for row in plan.rows if not names or row.name in names]
