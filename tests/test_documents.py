"""What the documents say is what the code does and what the records hold."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_links_lead_somewhere():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
