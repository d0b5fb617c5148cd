"""One HTML page on a sweep: budgets, the best of each arm, and perplexity over trials and over minutes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError
from varsmooth.experiment.seeds import shown_spread
from varsmooth.files import write_atomically
from varsmooth.report.page import data_uri, document, plain_table
from varsmooth.report.plots import DARK, LIGHT, MissingPlotError
from varsmooth.report.sweep_plot import Cost, sweep_picture
from varsmooth.sweep import ArmSummary, StudySummary


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
    arms = "1 arm" if len(study.arms) == 1 else f"{len(study.arms)} arms"
    opening = f"{arms}, each with {study.budget_text()}; sampled by {study.sampler}, pruned by {study.pruner}. {state}"
    body = [
        f"<header><h1>{escape(title)}</h1><p>{escape(opening)}</p></header>",
        f"<section><h2>Budgets and results</h2>{_results(study.arms)}</section>",
        f"<section><h2>Best configurations</h2>{''.join(map(_best, study.arms))}</section>",
        f"<section><h2>Perplexity over trials</h2>{_picture(study, 'trials')}</section>",
        f"<section><h2>Perplexity over cost</h2>{_picture(study, 'minutes')}</section>",
        f"<section><h2>Importance of parameters</h2>{''.join(map(_importance, study.arms))}</section>",
        f"<section><h2>Arms</h2>{''.join(map(_arm, study.arms))}</section>",
    ]
    return document(title, "\n".join(body))


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
        "seeds: valid",
        "seeds: test",
    )
    return plain_table(headings, [_row(arm) for arm in arms])


def _row(arm: ArmSummary) -> list[str]:
    used, given = arm.used, arm.budget
    return [
        arm.arm,
        f"{used['trials']} of {given['trials'] or 'any number'}",
        str(used["pruned"]),
        str(used["failed"]),
        f"{given['steps_per_trial']:,}",
        f"{used['steps']:,}" + (f" of {given['total_steps']:,}" if given["total_steps"] else ""),
        f"{used['minutes']:.1f}" + (f" of {given['minutes']:g}" if given["minutes"] else ""),
        _figure(arm.best.valid_perplexity if arm.best else None),
        shown_spread(arm.seeds_valid, len(arm.seeds)) or "-",
        shown_spread(arm.seeds_test, len(arm.seeds)) or "-",
    ]


def _best(arm: ArmSummary) -> str:
    """What was chosen, and how it did with other seeds."""
    if arm.best is None:
        return f'<h3>{escape(arm.arm)}</h3><p class="quiet">None: no trial was trained to the end yet.</p>'
    chosen = plain_table(
        ("trial", "valid", *arm.best.params),
        [(arm.best.trial, _figure(arm.best.valid_perplexity), *map(_value, arm.best.params.values()))],
    )
    rows = [(str(s.seed), s.state, _figure(s.valid_perplexity), _figure(s.test_perplexity)) for s in arm.seeds]
    seeds = plain_table(("seed", "state", "valid", "test"), rows) if rows else ""
    return f"<h3>{escape(arm.arm)}</h3>{chosen}{seeds}"


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
