"""One HTML page that holds everything it shows: no script, no link, no file beside it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.report.page_style import STYLE
from varsmooth.report.plots import DARK, LIGHT, MissingPlotError, learning_curves
from varsmooth.report.runs import RunSummary, printable
from varsmooth.report.tables import Row, build_rows, display_columns, explanation

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
EVALUATION = ("split", "predict", "samples", "average", "perplexity", "tokens")


@dataclass(frozen=True)
class Sample:
    """A sentence that a run has scored, or has generated after ``prompt``, which ``text`` may begin with."""

    recipe: str
    kind: Literal["scored", "generated"]
    text: str
    prompt: str = ""
    perplexity: float | None = None
    unknown: int = 0
    """Words of the sentence that the vocabulary lacks."""


def write_page(
    path: Path | str,
    runs: Sequence[RunSummary],
    *,
    title: str,
    notes: Sequence[str] = (),
    samples: Sequence[Sample] = (),
) -> None:
    """Write one self-contained page on ``runs``: what was run, the table, learning curves, samples and each run's details."""
    if not runs:
        raise InputError("no runs to report on; give at least one run folder")
    page = render_page(runs, title=title, notes=notes, samples=samples)
    try:
        write_atomically(Path(path), page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def render_page(runs: Sequence[RunSummary], *, title: str, notes: Sequence[str], samples: Sequence[Sample]) -> str:
    """Return the text of the page."""
    rows = build_rows(runs)
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f"<p>{escape(summary(runs, rows))}</p>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        "</header>",
        "<section><h2>Results</h2>",
        _results_table(rows),
        f'<p class="quiet">{escape(explanation(rows))}</p></section>',
        f"<section><h2>Learning curves</h2>{_figure(runs)}</section>",
        _samples_section(samples),
        f"<section><h2>Runs</h2>{''.join(map(_run_details, runs))}</section>",
    ]
    return document(title, "\n".join(part for part in body if part))


def summary(runs: Sequence[RunSummary], rows: Sequence[Row]) -> str:
    """Say in a few sentences what was run, on what data and on which machine."""
    recipes = len({row.recipe for row in rows})
    sentences = [f"{_number(len(runs), 'run')} of {_number(recipes, 'recipe')}."]
    sentences += dict.fromkeys(_data_sentence(run) for run in runs)
    seconds = sum(float(run.record.get("seconds") or 0) for run in runs)
    machines = list(dict.fromkeys(filter(None, map(_machine, runs))))
    if seconds:
        sentences.append(f"Trained in {_duration(seconds)} in all{' on ' + ' and '.join(machines) if machines else ''}.")
    return " ".join(sentences)


def document(title: str, body: str) -> str:
    """Return a page that needs nothing beside it."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _data_sentence(run: RunSummary) -> str:
    data: Mapping[str, Any] = run.record.get("data") or {}
    tokens = data.get("tokens") or {}
    splits = {"train": "training", "valid": "development", "test": "test"}
    counted = [f"{_whole(tokens[split])} {name}" for split, name in splits.items() if split in tokens]
    parts = [f"{', '.join(counted)} tokens"] if counted else []
    if data.get("vocab_size") is not None:
        parts.append(f"a vocabulary of {_whole(data['vocab_size'])} words")
    return f"Data: {run.data_name}" + (f" ({'; '.join(parts)})." if parts else ".")


def _machine(run: RunSummary) -> str:
    hardware = run.record.get("hardware") or {}
    device, name, cores = (hardware.get(key) for key in ("device", "name", "cores"))
    return ", ".join(str(part) for part in (name or device, f"{cores} cores" if cores else None) if part)


def _results_table(rows: Sequence[Row]) -> str:
    columns = display_columns(rows)
    kinds = ["number" if column.numeric else "name" for column in columns]
    head = "".join(f'<th class="{kind}">{escape(column.header)}</th>' for column, kind in zip(columns, kinds, strict=True))
    lines = []
    for index in range(len(rows)):
        cells = (
            f'<td class="{kind}{" best" if index in column.best else ""}">{escape(column.cells[index])}</td>'
            for column, kind in zip(columns, kinds, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _figure(runs: Sequence[RunSummary]) -> str:
    """Return the curves twice, for light and dark pages, or the reason why there are none."""
    if not any(run.curve for run in runs):
        return '<p class="quiet">None of the runs has been evaluated yet, so there are no curves.</p>'
    try:
        light, dark = (data_uri(learning_curves(runs, title="", theme=theme)) for theme in (LIGHT, DARK))
    except MissingPlotError as error:
        return f'<p class="quiet">Not drawn: {escape(str(error))}</p>'
    return (
        f'<picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="Development perplexity over training steps, one colour per recipe"></picture>'
    )


def data_uri(png: bytes) -> str:
    """Return a picture as a page can hold it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _samples_section(samples: Sequence[Sample]) -> str:
    scored = [
        (sample.text, sample.recipe, _figure_or_dash(sample.perplexity), str(sample.unknown))
        for sample in samples
        if sample.kind == "scored"
    ]
    parts = []
    if scored:
        parts.append("<h3>Scored sentences</h3>" + plain_table(("sentence", "recipe", "perplexity", "unknown words"), scored))
    generated = [sample for sample in samples if sample.kind == "generated"]
    if generated:
        parts.append("<h3>Generated sentences</h3>" + "".join(map(_generated, generated)))
    return f"<section><h2>Samples</h2>{''.join(parts)}</section>" if parts else ""


def _generated(sample: Sample) -> str:
    prompt = f'<span class="quiet">{escape(sample.prompt)}</span> ' if sample.prompt else ""
    text = sample.text.removeprefix(sample.prompt).lstrip()
    caption = f"<figcaption>{escape(sample.recipe)}</figcaption>"
    return f"<figure><blockquote>{prompt}{escape(text)}</blockquote>{caption}</figure>"


def _run_details(run: RunSummary) -> str:
    best = f", best development perplexity {run.best_valid:,.2f}" if run.best_valid is not None else ""
    heading = f"{run.recipe}, seed {run.seed}: {run.status}{best}"
    return (
        f"<details><summary>{escape(heading)}</summary>"
        f"{_facts(run)}{_evaluations(run)}"
        f"<h3>Configuration</h3><pre>{escape(_toml_like(run.record.get('config') or {}))}</pre></details>"
    )


def _facts(run: RunSummary) -> str:
    record = run.record
    facts = {
        "folder": run.path.resolve().name,
        "steps": record.get("steps"),
        "best step": (record.get("best") or {}).get("step"),
        "stopped because": record.get("stopped_because"),
        "parameters": record.get("parameters"),
        "training time": _duration(float(record["seconds"])) if record.get("seconds") else None,
        "tokens per second": record.get("tokens_per_second"),
        "hardware": _machine(run) or None,
        "versions": ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items()) or None,
        "commit": record.get("commit"),
    }
    known = ((name, value) for name, value in facts.items() if value is not None)
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(_whole(value))}</dd>" for name, value in known) + "</dl>"


def _evaluations(run: RunSummary) -> str:
    if not run.results:
        return '<p class="quiet">Not evaluated on the test set yet.</p>'
    rows = [[_cell(entry.get(key)) for key in EVALUATION] + [_temperature(entry)] for entry in run.results]
    return "<h3>Evaluations</h3>" + plain_table((*EVALUATION, "temperature"), rows)


def _temperature(entry: Mapping[str, Any]) -> str:
    return _cell(entry.get("temperature")) + (" (tuned)" if entry.get("tuned_temperature") else "")


def plain_table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of text."""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _toml_like(config: Mapping[str, Any]) -> str:
    """Return the settings as one would write them in a configuration file."""
    plain = [f"{key} = {_literal(value)}" for key, value in config.items() if not isinstance(value, dict)]
    sections = [
        "\n".join([f"[{key}]", *(f"{name} = {_literal(item)}" for name, item in value.items())])
        for key, value in config.items()
        if isinstance(value, dict)
    ]
    return "\n\n".join(["\n".join(plain), *sections] if plain else sections)


def _literal(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def _cell(value: Any) -> str:
    return "-" if value is None else _figure_or_dash(value) if isinstance(value, float) else _whole(value)


def _figure_or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _whole(value: Any) -> str:
    """Return numbers with thousands set apart, anything else as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return printable(str(value))
    return f"{value:,.0f}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "an unknown time"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount) or "under a second"
