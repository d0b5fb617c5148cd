"""varsmooth report"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from varsmooth.cli.app import app, errors
from varsmooth.cli.options import check_page
from varsmooth.cli.output import OutputConsole, say
from varsmooth.errors import InputError
from varsmooth.report import (
    ResultsTable,
    Row,
    RunSummary,
    as_json,
    as_markdown,
    build_rows,
    load_run,
    runs_in,
    write_learning_curves,
    write_page,
)
from varsmooth.report.plots import MissingPlotError

DEFAULT_PAGE = Path("report.html")


@app.command
def report(
    *runs: Path,
    out: Path | None = None,
    force: bool = False,
    json_: bool = False,
    markdown: bool = False,
) -> None:
    """Compare runs: a table with mean and spread over seeds, learning curves and one page that holds it all.

    Runs of one recipe that differ only by their seed make one row. The page needs nothing beside it; the learning curves are
    also written as a PNG of the same name.

    Examples:

        varsmooth report runs/vanilla runs/kn --out comparison.html
        varsmooth report runs --markdown

    Parameters
    ----------
    runs
        Run folders, as `varsmooth train` made them, or folders that hold some at any depth, such as a fleet's.
    out
        The page to write, whose name ends in .html; report.html unless given. With --json or --markdown, a page is written only
        where this asks for one.
    force
        Replace the page and its picture where they exist.
    json_
        Print the table as JSON.
    markdown
        Print the table as Markdown.
    """
    if not runs:
        raise InputError("no runs to report on: name at least one run folder, as in varsmooth report runs/first")
    if json_ and markdown:
        raise InputError("--json and --markdown are two forms of one table; give one of them")
    page = out or (None if json_ or markdown else DEFAULT_PAGE)
    if page is not None:
        check_page("--out", page, _picture(page), force=force)
    summaries = [load_run(run) for path in runs for run in runs_in(path)]
    rows = build_rows(summaries)
    curves = None if page is None else _write(page, summaries)
    if json_:
        files = {"page": page, "curves": curves}
        print(json.dumps({"rows": as_json(rows), **{name: path and str(path) for name, path in files.items()}}))
        return
    _print_rows(rows, markdown)
    tell = errors.print if markdown else say
    for name, path in (("page", page), ("learning curves", curves)):
        if path is not None:
            tell(f"{name}: {path}")


def _picture(page: Path) -> Path:
    return page.with_suffix(".png")


def _write(page: Path, runs: Sequence[RunSummary]) -> Path | None:
    """Write the page, and the curves beside it where there are any; return where the curves are."""
    title = ", ".join(dict.fromkeys(run.data_name for run in runs))
    write_page(page, runs, title=f"Language models on {title}")
    if not any(run.curve for run in runs):
        return None
    try:
        write_learning_curves(_picture(page), runs)
    except MissingPlotError as error:
        errors.print(f"varsmooth: no learning curves: {error}")
        return None
    return _picture(page)


def _print_rows(rows: Sequence[Row], markdown: bool) -> None:
    if markdown:
        print(as_markdown(rows), end="")
    else:
        OutputConsole().print(ResultsTable(rows))
