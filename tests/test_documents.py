"""What the documents say is what the code does and what the records hold."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from varsmooth.cli import app
from varsmooth.report.runs import load_run
from varsmooth.report.tables import as_markdown, build_rows

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("VARSMOOTH_CACHE", str(tmp_path))
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    core, _, using = example.partition("\nmodel = ")
    assert using.startswith("LanguageModel.load(")
    names: dict[str, object] = {}
    exec(core, names)
    assert names["vectors"].shape == (35, 20, 64)
    names["loss"].backward()
    assert names["table"].grad.abs().sum() > 0


def test_the_table_of_verbs_is_complete():
    listed = set(re.findall(r"^\| `varsmooth (\w+)` \|", README, re.MULTILINE))
    assert listed == {name for name in app if not name.startswith("-")}


def test_the_demonstrations_table_is_that_of_its_records():
    records = sorted((ROOT / "results" / "demo").glob("*/record.json"))
    assert len(records) == 9
    runs = [load_run(record.parent) for record in records]
    assert all(run.finished and run.record["commit"] and "modified" not in run.record["commit"] for run in runs)
    assert as_markdown(build_rows(runs)).strip() in README


def bench_medians() -> dict[tuple[str, ...], float]:
    """Return the newest median of each measurement by quantity, size, vocabulary and scheme; a CPU's sizes are its own."""
    with (ROOT / "results" / "bench.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["quantity"], row["size"], row["vocabulary"], row["scheme"]): float(row["median"]) for row in rows}


def test_the_performance_figures_are_those_of_the_record():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    medians = bench_medians()
    found = re.findall(r"^\| ([\w ]+) \| (\d+) \| ([\d,]+) \| ([\w ]+) \|.*\| ([\d.]+) (?:ms|x|MB) \|$", text, re.MULTILINE)
    assert len(found) >= 18
    for quantity, size, vocabulary, scheme, figure in found:
        median = medians[quantity, size, vocabulary.replace(",", ""), scheme]
        assert float(figure) == pytest.approx(median, abs=0.0006), (quantity, size, vocabulary, scheme)


def test_the_readmes_milliseconds_are_those_of_the_record():
    names = ["eager step/vanilla", "step/vanilla", "step/word KN", "step/element KN batch", "fleet of 8/vanilla"]
    section = README[README.index("## On a GPU") : README.index("## In Python")]
    figures = [float(figure) for figure in re.findall(r"\| (\d+\.\d+) \|$", section, re.MULTILINE)]
    medians = [bench_medians()[quantity, "512", "10000", scheme] for quantity, scheme in (name.split("/") for name in names)]
    assert figures == [round(median, 1 if median > 10 else 2) for median in medians]


def test_links_lead_somewhere():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
