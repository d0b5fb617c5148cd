"""One HTML page on a sweep: budgets, the best of each arm, and perplexity over trials and over minutes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.report.page import data_uri, document, plain_table
from varsmooth.report.plots import DARK, LIGHT, MissingPlotError, Theme, add_legend, as_png, blank_figure, colour_axes
from varsmooth.sweep import ArmSummary, StudySummary

Cost = Literal["trials", "minutes"]
NOTE = "line: the best so far; dots: trials that ended there; crosses: pruned"


def write_sweep_page(path: Path, study: StudySummary) -> None:
    """Write a page that holds everything it shows."""
    try:
        write_atomically(path, render_sweep_page(study).encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def render_sweep_page(study: StudySummary) -> str:
    """Return the text of the page."""
    title = f"Sweep {study.study}"
    state = "It is through." if study.finished else "It is under way."
    opening = f"{len(study.arms)} arms with equal budgets, sampled by {study.sampler}, pruned by {study.pruner}. {state}"
    body = [
        f"<header><h1>{escape(title)}</h1><p>{escape(opening)}</p></header>",
        f"<section><h2>Budgets and results</h2>{_results(study.arms)}</section>",
        f"<section><h2>Perplexity over trials</h2>{_picture(study, 'trials')}</section>",
        f"<section><h2>Perplexity over cost</h2>{_picture(study, 'minutes')}</section>",
        f"<section><h2>Importance of parameters</h2>{''.join(map(_importance, study.arms))}</section>",
        f"<section><h2>Arms</h2>{''.join(map(_arm, study.arms))}</section>",
    ]
    return document(title, "\n".join(body))


def sweep_picture(study: StudySummary, cost: Cost, theme: Theme = LIGHT) -> bytes:
    """Return a PNG of development perplexity over trials or minutes, one colour per arm."""
    arms = [arm for arm in study.arms if any(trial.valid_perplexity is not None for trial in arm.trials)]
    if not arms:
        raise InputError("nothing to draw: no trial of this study has ended with a perplexity")
    figure = blank_figure()
    axes = figure.add_subplot()
    lines = [_draw(axes, arm, cost, theme.lines[number % len(theme.lines)]) for number, arm in enumerate(arms)]
    axes.set_xlabel({"trials": "trials", "minutes": "minutes of training"}[cost], color=theme.ink)
    axes.set_ylabel("development perplexity", color=theme.ink)
    axes.set_title(NOTE, color=theme.ink, fontsize=8, loc="right", alpha=0.7)
    colour_axes(axes, theme)
    add_legend(axes, lines, [arm.arm for arm in arms], theme)
    return as_png(figure, theme)


def _draw(axes: Any, arm: ArmSummary, cost: Cost, colour: str) -> Any:
    places = [number if cost == "trials" else trial.minutes_so_far for number, trial in enumerate(arm.trials, start=1)]
    known = [(x, trial) for x, trial in zip(places, arm.trials, strict=True) if trial.valid_perplexity is not None]
    for state, marker in (("finished", "o"), ("pruned", "x")):
        points = [(x, trial.valid_perplexity) for x, trial in known if trial.state == state]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=16, alpha=0.6)
    complete = [(x, float(trial.valid_perplexity or 0)) for x, trial in known if trial.state == "finished"]
    values = [value for _, value in complete]
    best = [min(values[: number + 1]) for number in range(len(values))]
    (line,) = axes.step([x for x, _ in complete], best, where="post", color=colour, linewidth=2)
    return line


def _picture(study: StudySummary, cost: Cost) -> str:
    try:
        light, dark = (data_uri(sweep_picture(study, cost, theme)) for theme in (LIGHT, DARK))
    except MissingPlotError as error:
        return f'<p class="quiet">Not drawn: {escape(str(error))}</p>'
    except InputError as error:
        return f'<p class="quiet">{escape(str(error))}</p>'
    return (
        f'<picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="Development perplexity over {cost}, one colour per arm"></picture>'
    )


def _results(arms: Sequence[ArmSummary]) -> str:
    headings = (
        "arm",
        "trials",
        "pruned",
        "failed",
        "steps per trial",
        "steps",
        "minutes",
        "best valid",
        "of",
        "seeds: valid",
        "test",
    )
    return plain_table(headings, [_row(arm) for arm in arms])


def _row(arm: ArmSummary) -> list[str]:
    used, given = arm.used, arm.budget
    tests = [f"{entry.test_perplexity:.2f}" for entry in arm.seeds if entry.test_perplexity is not None]
    spread = "" if arm.seeds_valid_spread is None else f" ± {arm.seeds_valid_spread:.2f}"
    return [
        arm.arm,
        f"{used['trials']} of {given['trials'] or 'any number'}",
        str(used["pruned"]),
        str(used["failed"]),
        f"{given['steps_per_trial']:,}",
        f"{used['steps']:,}",
        f"{used['minutes']:.1f}" + (f" of {given['minutes']:g}" if given["minutes"] else ""),
        _figure(arm.best.valid_perplexity if arm.best else None),
        arm.best.trial if arm.best else "-",
        "-" if arm.seeds_valid_mean is None else f"{arm.seeds_valid_mean:.2f}{spread}",
        ", ".join(tests) or "-",
    ]


def _importance(arm: ArmSummary) -> str:
    if arm.importance is None:
        return f'<h3>{escape(arm.arm)}</h3><p class="quiet">None: {escape(arm.importance_missing or "")}.</p>'
    rows = [(key, f"{value:.2f}") for key, value in arm.importance.items()]
    return f"<h3>{escape(arm.arm)}</h3>" + plain_table(("parameter", "share"), rows)


def _arm(arm: ArmSummary) -> str:
    keys = list(dict.fromkeys(key for trial in arm.trials for key in trial.params))
    rows = [
        [
            trial.trial,
            trial.state,
            _figure(trial.valid_perplexity),
            *(_value(trial.params.get(key)) for key in keys),
            trial.reason or "",
        ]
        for trial in arm.trials
    ]
    table = plain_table(("trial", "state", "valid", *keys, "reason"), rows)
    best = f"<h3>Best configuration</h3><pre>{escape(arm.best_config)}</pre>" if arm.best_config else ""
    return f"<details><summary>{escape(arm.arm)}: {len(arm.trials)} trials</summary>{table}{best}</details>"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _value(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
