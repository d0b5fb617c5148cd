"""A table of runs: one row for each recipe and configuration, with mean and spread over seeds."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from varsmooth.experiment.seeds import Spread, shown_spread, spread
from varsmooth.files import for_json
from varsmooth.report.runs import RunGroup, RunSummary, group_runs, printable

PREDICTIONS = ("mode", "mean", "mean-input", "sample")
TUNED = "tuned"
NOTHING = "-"
MANY_SEEDS = 5
NARROWEST_NAME = 12
"""Columns of a terminal into which the name of a recipe may be folded."""


@dataclass(frozen=True)
class Row:
    """The runs of one recipe and configuration that have finished, or those that have not.

    ``test`` holds test perplexities by way of prediction: ``mode``, ``mean``, ``mean-input``, ``sample 20 arithmetic``, and any
    of these followed by ``tuned``, its value at a temperature tuned on the development set.
    """

    recipe: str
    data: str
    status: str
    seeds: tuple[int, ...]
    parameters: int | None
    best_valid: Spread | None
    test: dict[str, Spread]

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True)
class Column:
    """A column as it is shown; ``best`` holds the rows that are the lowest of their data set."""

    header: str
    cells: list[str]
    numeric: bool = True
    best: frozenset[int] = frozenset()


def build_rows(runs: Iterable[RunSummary]) -> list[Row]:
    """Return a row for each group of runs that differ only by seed; unfinished runs never mix with finished ones."""
    rows = []
    for group in group_runs(runs):
        finished = [run for run in group.runs if run.finished]
        unfinished = [run for run in group.runs if not run.finished]
        rows += [_row(group, members) for members in (finished, unfinished) if members]
    return rows


def display_columns(rows: Sequence[Row]) -> list[Column]:
    """Return what a reader sees, whatever the medium: columns that say nothing are left out."""
    columns = [Column("recipe", _shown_recipes(rows), numeric=False)]
    if len({row.data for row in rows}) > 1:
        columns.append(Column("data", [row.data for row in rows], numeric=False))
    if not all(row.finished for row in rows):
        columns.append(Column("status", [row.status for row in rows], numeric=False))
    columns.append(Column("seeds", [_shown_seeds(row.seeds) for row in rows]))
    columns.append(Column("size", [_shown_size(row.parameters) for row in rows]))
    columns.append(_perplexities("valid", rows, [row.best_valid for row in rows]))
    names = sorted({name for row in rows for name in row.test}, key=_place)
    return columns + [_perplexities(f"test {name}", rows, [row.test.get(name) for row in rows]) for name in names]


def _shown_recipes(rows: Sequence[Row]) -> list[str]:
    """Leave out the setting where all rows have the same."""
    names = [row.recipe.partition("/") for row in rows]
    distinct, settings = {name for name, _, _ in names}, {setting for _, _, setting in names}
    shared = len(settings) == 1 and len(rows) > 1 and len(distinct) == len(rows)
    return [name if shared else row.recipe for (name, _, _), row in zip(names, rows, strict=True)]


def explanation(rows: Sequence[Row]) -> str:
    """Return what the columns mean, as far as these rows need it."""
    parts = ["Perplexity, lower is better; valid is the best on the development set; size is the number of parameters."]
    spreads = [item for row in rows for item in (row.best_valid, *row.test.values()) if item is not None]
    if any(item.deviation is not None for item in spreads):
        parts.append("Means over seeds ± their sample standard deviation.")
    if any(name.endswith(TUNED) for row in rows for name in row.test):
        parts.append("Tuned: at the temperature that is best on the development set.")
    return " ".join(parts)


@dataclass(frozen=True)
class ResultsTable:
    """The table for a terminal, the lowest perplexity of each column in bold; where it is too narrow, one row after another."""

    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._wide()
        fits = Measurement.get(console, options.update(width=1000), wide).minimum <= options.max_width
        yield wide if fits else self._stacked()

    def _wide(self) -> Table:
        caption = explanation(self.rows)
        table = Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
        columns = display_columns(self.rows)
        for column in columns:
            header = Text(column.header.replace(" ", "\n").replace("-", "-\n"))
            if column.numeric:
                table.add_column(header, justify="right", no_wrap=True)
            else:
                table.add_column(header, overflow="fold", min_width=NARROWEST_NAME)
        for index in range(len(self.rows)):
            table.add_row(*(_terminal_cell(column, index) for column in columns))
        return table

    def _stacked(self) -> Group:
        first, *others = display_columns(self.rows)
        parts: list[RenderableType] = []
        for index, name in enumerate(first.cells):
            table = Table(box=None, pad_edge=False, show_header=False)
            for column in others:
                table.add_row(Text(column.header), Text(column.cells[index], style=_style(column, index)))
            parts += [Text(name, overflow="fold"), Padding(table, (0, 0, 1, 2))]
        return Group(*parts, Text(explanation(self.rows), style="table.caption"))


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table as GitHub-flavoured Markdown."""
    columns = display_columns(rows)
    lines = [[column.header for column in columns], ["---:" if column.numeric else "---" for column in columns]]
    for index in range(len(rows)):
        cells = [(_markdown_text(column.cells[index]), index in column.best) for column in columns]
        lines.append([f"**{text}**" if best else text for text, best in cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{explanation(rows)}\n"


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain values that ``json.dumps`` takes; a figure that is not finite becomes None."""
    return [for_json(asdict(row)) for row in rows]


def _terminal_cell(column: Column, index: int) -> Text:
    """Put the spread below its mean: terminals are narrow, and would break figures anywhere."""
    text = column.cells[index]
    if column.numeric:
        text = text.replace(" ±", "\n±").replace(" (", "\n(")
    return Text(text, style=_style(column, index))


def _style(column: Column, index: int) -> str:
    return "bold" if index in column.best else ""


def _row(group: RunGroup, runs: Sequence[RunSummary]) -> Row:
    tests = [(run.seed, _test_results(run)) for run in runs]
    names = sorted({name for _, results in tests for name in results}, key=_place)
    by_name = {name: spread((seed, results[name]) for seed, results in tests if name in results) for name in names}
    return Row(
        recipe=group.label,
        data=group.data,
        status=", ".join(dict.fromkeys(run.status for run in runs)),
        seeds=tuple(run.seed for run in runs),
        parameters=next((run.record["parameters"] for run in runs if run.record.get("parameters") is not None), None),
        best_valid=spread((run.seed, run.best_valid) for run in runs if run.best_valid is not None),
        test={name: item for name, item in by_name.items() if item is not None},
    )


def _test_results(run: RunSummary) -> dict[str, float]:
    """Return test perplexities by name; the latest of a kind counts, and a temperature set by hand is comparable to nothing."""
    results = {}
    for entry in run.results:
        tuned = bool(entry.get("tuned_temperature"))
        if entry.get("split") == "test" and (tuned or (entry.get("temperature") or 1.0) == 1.0):
            results[_name(entry, tuned)] = float(entry["perplexity"])
    return results


def _name(entry: Mapping[str, Any], tuned: bool) -> str:
    words = [entry.get("predict"), entry.get("samples"), entry.get("average"), TUNED if tuned else None]
    return printable(" ".join(str(word) for word in words if word is not None))


def _place(name: str) -> tuple[bool, int, str]:
    prediction = name.split(" ")[0]
    rank = PREDICTIONS.index(prediction) if prediction in PREDICTIONS else len(PREDICTIONS)
    return name.endswith(f" {TUNED}"), rank, name


def _perplexities(header: str, rows: Sequence[Row], spreads: Sequence[Spread | None]) -> Column:
    cells = [shown_spread(item, len(set(row.seeds))) or NOTHING for item, row in zip(spreads, rows, strict=True)]
    best: set[int] = set()
    for data in {row.data for row in rows}:
        rivals = {
            index: item.mean
            for index, (item, row) in enumerate(zip(spreads, rows, strict=True))
            if item is not None and row.data == data and row.finished and math.isfinite(item.mean)
        }
        if len(rivals) > 1:
            best.add(min(rivals, key=rivals.__getitem__))
    return Column(header, cells, best=frozenset(best))


def _shown_seeds(seeds: Sequence[int]) -> str:
    """Return ``1, 7`` or ``1-3``; of many scattered seeds, only how many they are."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds)) if len(seeds) <= MANY_SEEDS else f"{len(set(seeds))} seeds"


def _shown_size(parameters: int | None) -> str:
    if parameters is None:
        return NOTHING
    for unit, letter, decimals in ((1_000_000, "M", 2), (1_000, "k", 0)):
        if parameters >= unit:
            return f"{parameters / unit:.{decimals}f}{letter}"
    return str(parameters)


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(text, quote=False))
