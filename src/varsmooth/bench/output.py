"""Findings for people, as tables, and for later, as rows of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.table import Table

from varsmooth.bench.findings import Check, Findings, Measurement
from varsmooth.bench.targets import vocabulary_name
from varsmooth.errors import InputError
from varsmooth.files import check_place, write_atomically

RUN_COLUMNS = ("time", "device", "torch", "triton", "python", "varsmooth", "commit")
MODEL_COLUMNS = ("group", "quantity", "size", "vocabulary", "scheme")
FIGURE_COLUMNS = ("median", "q1", "q3", "unit", "repeats", "floor", "start", "reach", "aim")
COLUMNS = (*RUN_COLUMNS, *MODEL_COLUMNS, *FIGURE_COLUMNS)
VERDICTS = {"aim": "aim", "reach": "yes", "no": "no"}


def figures_table(measurements: Iterable[Measurement]) -> Table:
    """Return every figure with its quartiles, and its floor where one is counted."""
    table = _table("Measured", ["what", "scheme"], ["size", "words", "median", "quartiles"], ["unit"])
    table.add_column("floor", justify="right", no_wrap=True)
    for found in measurements:
        spread, size, words = found.spread, str(found.size), vocabulary_name(found.words)
        quartiles = f"{_shown(spread.q1)}-{_shown(spread.q3)}" if spread.repeats > 1 else ""
        figures = (size, words, _shown(spread.median), quartiles, found.unit, _shown(found.floor))
        table.add_row(found.quantity, found.scheme, *figures)
    return table


def targets_table(measurements: Iterable[Measurement]) -> Table | None:
    """Return the figures that have something to reach, or None where none has."""
    judged = [(found, found.target) for found in measurements if found.target is not None]
    if not judged:
        return None
    table = _table("Figures to reach", ["what"], ["measured", "start", "reach", "aim"], ["unit", "reached"])
    for found, target in judged:
        median = found.spread.median
        figures = [_shown(figure) for figure in (median, target.start, target.reach, target.aim)]
        table.add_row(target.name, *figures, found.unit, VERDICTS[target.verdict(median)])
    return table


def _table(title: str, names: Sequence[str], numbers: Sequence[str], words: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=0, pad_edge=False)
    for column in (*names, *numbers, *words):
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=column not in names)
    return table


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.4g}"


def failure_lines(failures: Sequence[Check]) -> list[str]:
    """Say what the gate found, one line for each check that failed."""
    return [f"{check.name}: {check.subject}: off by {check.found:.2g}, allowed {check.tolerance:.2g}" for check in failures]


def check_csv(path: Path) -> None:
    """Refuse, before anything is measured, a file that rows cannot be added to."""
    check_place(path, "--csv")
    if path.is_dir():
        raise InputError(f"--csv {path}: is a folder; name a file")
    if path.exists() and _header(path) != ",".join(COLUMNS):
        raise InputError(f"--csv {path}: exists, and its first line is not that of a bench; name another file")


def append_csv(path: Path, findings: Findings) -> None:
    """Add one row for each measurement; a new file begins with the names of the columns."""
    check_csv(path)
    known = path.read_bytes() if path.exists() else (",".join(COLUMNS) + "\n").encode()
    separator = b"" if known.endswith(b"\n") else b"\n"
    write_atomically(path, known + separator + _rows(findings).encode())


def _rows(findings: Findings) -> str:
    versions, hardware = findings.environment["versions"], findings.environment["hardware"]
    run = {
        **{name: versions[name] for name in ("torch", "triton", "python", "varsmooth")},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": hardware["name"],
        "commit": findings.environment["commit"],
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    for found in findings.measurements:
        figures = {name: _rounded(value) for name, value in found.as_json().items()}
        writer.writerow(run | figures)
    return text.getvalue()


def _rounded(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _header(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--csv {path}: cannot be read: {error}") from None
