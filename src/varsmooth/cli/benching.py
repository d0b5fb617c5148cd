"""varsmooth bench"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from varsmooth.bench import Findings, plan_for, run_bench
from varsmooth.bench.output import append_csv, check_csv, failure_lines, figures_table, targets_table
from varsmooth.bench.suite import Observer
from varsmooth.cli.app import FAILED, app, errors
from varsmooth.cli.options import parse_whole_numbers
from varsmooth.cli.output import OutputConsole
from varsmooth.config.sections import Device
from varsmooth.train.build import resolve_device


@app.command
def bench(
    *,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    sizes: str | None = None,
    quick: bool = False,
    csv: Path | None = None,
    device: Device = "auto",
    json_: bool = False,
) -> int:
    """Measure how fast training is, on made-up text, after checking that its results are right.

    On a GPU: the plain loop, the captured step, each smoothing scheme beside the plain model, fleets of runs on one card, the
    parts of a step beside what they cannot do without, and memory; a few minutes. On the CPU a small version, in less than one.
    Figures are medians with quartiles of repeats in which the cases take turns. Where a check fails nothing is timed, and the
    exit status is 1.

    Examples:

        varsmooth bench
        varsmooth bench --quick --only schemes --sizes 512
        varsmooth bench --csv results/bench.csv --json

    Parameters
    ----------
    only
        Of `eager`, `schemes`, `fleet`, `parts` and `memory`, measure these alone (only `schemes` on the CPU); or `learning`,
        the steps to a perplexity, which takes minutes and is measured only where it is asked for.
    sizes
        Units per layer, separated by commas, instead of 512,1024 (on the CPU 64,128).
    quick
        Repeat less: a first look, not a figure to report.
    csv
        Add one row for each measurement to this file.
    device
        Where to compute.
    json_
        Print everything as JSON, the checks included.
    """
    groups = tuple(part.strip() for name in only or [] for part in name.split(","))
    plan = plan_for(resolve_device(device), groups, tuple(parse_whole_numbers("--sizes", sizes, "512,1024")), quick=quick)
    if csv is not None:
        check_csv(csv)
    with _progress() as observe:
        findings = run_bench(plan, observe)
    if json_:
        print(json.dumps(findings.as_json()))
    if findings.failures:
        for line in failure_lines(findings.failures):
            errors.print(line)
        errors.print("varsmooth: the results above are wrong, so nothing was timed")
        return FAILED
    if not json_:
        _print(findings)
    if csv is not None:
        append_csv(csv, findings)
    return 0


def _print(findings: Findings) -> None:
    console, hardware = OutputConsole(), findings.environment["hardware"]
    console.print(f"{hardware['name']}: {len(findings.checks)} checks passed, {findings.seconds:.0f} s", highlight=False)
    console.print(figures_table(findings.measurements))
    targets = targets_table(findings.measurements)
    if targets is not None:
        console.print(targets)
    if hardware["device"] == "cuda":
        console.print(
            "floor: matrix products at 790 TFLOP/s and bytes at 4.3 TB/s; it and the figures to reach are those of an H200.",
            highlight=False,
        )


@contextmanager
def _progress() -> Iterator[Observer]:
    """Show on standard error what is being measured: a bar on a terminal, lines elsewhere."""
    if not errors.is_terminal:
        yield lambda name, number, total: errors.print(f"{number + 1}/{total} {name}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("")
        yield lambda name, number, total: bar.update(task, description=name, completed=number, total=total)
