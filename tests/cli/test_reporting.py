from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands_for_tests import Run, refused
from runs_for_tests import record, result

CURVE = [(40, 200.0), (80, 110.0), (120, 100.0), (160, 101.0)]
PNG = b"\x89PNG\r\n\x1a\n"

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of our own, where a page without a name goes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(name: str, recipe: str, seed: int, perplexity: float, *, curve: bool = True, **changes: Any) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(record(recipe, seed, results=[result(perplexity)], **changes)))
        lines = [json.dumps({"step": step, "valid_perplexity": value}) + "\n" for step, value in CURVE if curve]
        (folder / "metrics.jsonl").write_text("".join(lines))
        return folder

    return make


@pytest.fixture
def runs(make: Make) -> list[Path]:
    return [make("a", "vanilla", 1, 100.0), make("b", "vanilla", 2, 104.0), make("c", "smoothing-kneser-ney", 1, 95.0)]


def test_json_has_mean_and_spread_over_seeds(run: Run, runs: list[Path]) -> None:
    status, shown, complaint = run("report", *runs, "--json")
    assert (status, complaint) == (0, "")
    found = json.loads(shown)
    vanilla, smoothed = found["rows"]
    assert (vanilla["recipe"], vanilla["seeds"]) == ("vanilla", [1, 2])
    assert vanilla["test"]["mode"] == {"mean": 102.0, "deviation": pytest.approx(8**0.5), "seeds": 2}
    assert smoothed["test"]["mode"] == {"mean": 95.0, "deviation": None, "seeds": 1}
    assert (found["page"], found["curves"]) == (None, None)


def test_a_folder_of_runs_stands_for_them_all(run: Run, runs: list[Path], elsewhere: Path) -> None:
    (elsewhere / "runs" / "notes.txt").write_text("not a run")
    (elsewhere / "runs" / "empty").mkdir()
    one_by_one = run("report", *runs, "--json")
    assert run("report", "runs", "--json") == one_by_one
    assert run("report", "runs", *runs, "--json") == one_by_one, "a run that is named twice counts once"
    assert run("report", elsewhere, "--json") == one_by_one, "at any depth"
    shutil.copytree(runs[0], runs[0] / "copy")
    (elsewhere / "linked").mkdir()
    for link, target in (("runs", elsewhere / "runs"), ("circle", elsewhere / "linked")):
        (elsewhere / "linked" / link).symlink_to(target)
    assert run("report", elsewhere / "linked", "--json") == one_by_one, "links are followed, and not into runs"
    refused(run("report", elsewhere / "runs" / "empty"), "empty: not a run folder (it has no record.json), and it holds none")


def test_the_page_and_its_picture(run: Run, runs: list[Path], elsewhere: Path) -> None:
    status, shown, _ = run("report", *runs)
    assert status == 0
    assert "102.00" in shown
    assert "±2.83" in shown
    assert "\x1b" not in shown
    assert "page: report.html\n" in shown
    assert "learning curves: report.png\n" in shown
    page = (elsewhere / "report.html").read_text()
    assert "Language models on python" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert (elsewhere / "report.png").read_bytes().startswith(PNG)


def test_json_and_markdown_write_a_page_only_where_asked(run: Run, runs: list[Path], elsewhere: Path) -> None:
    assert run("report", *runs, "--json")[0] == 0
    assert run("report", *runs, "--markdown")[0] == 0
    assert {path.name for path in elsewhere.iterdir()} == {"runs"}
    found = json.loads(run("report", *runs, "--json", "--out", "pages/one.html")[1])
    assert (found["page"], found["curves"]) == ("pages/one.html", "pages/one.png")
    assert {path.name for path in (elsewhere / "pages").iterdir()} == {"one.html", "one.png"}


def test_markdown_is_alone_on_standard_output(run: Run, runs: list[Path]) -> None:
    status, shown, note = run("report", *runs, "--markdown", "--out", "one.html")
    assert status == 0
    assert shown.startswith("| recipe |")
    assert "| 102.00 ±2.83 |" in shown
    assert "one.html" not in shown
    assert "page: one.html\n" in note


@pytest.mark.parametrize("existing", ["one.html", "one.png"])
def test_nothing_is_overwritten_unless_forced(run: Run, runs: list[Path], elsewhere: Path, existing: str) -> None:
    (elsewhere / existing).write_text("mine")
    refused(run("report", *runs, "--out", "one.html"), f"{existing} exists already", "--force")
    assert (elsewhere / existing).read_text() == "mine"
    assert {path.name for path in elsewhere.iterdir()} == {"runs", existing}
    assert run("report", *runs, "--out", "one.html", "--force")[0] == 0
    assert (elsewhere / existing).read_bytes() != b"mine"


def test_runs_that_were_never_evaluated_have_no_picture(run: Run, make: Make, elsewhere: Path) -> None:
    status, shown, _ = run("report", make("a", "vanilla", 1, 100.0, curve=False))
    assert status == 0
    assert "page: report.html\n" in shown
    assert "learning curves:" not in shown
    assert not (elsewhere / "report.png").exists()


def test_without_matplotlib_there_is_still_a_page(
    run: Run, runs: list[Path], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, shown, complaint = run("report", *runs)
    assert status == 0
    assert "page: report.html\n" in shown
    assert complaint == "varsmooth: no learning curves: pictures need matplotlib: pip install 'varsmooth[plot]'\n"
    assert not (elsewhere / "report.png").exists()


def test_bad_input_gets_one_line(run: Run, runs: list[Path], elsewhere: Path) -> None:
    refused(run("report"), "run folder")
    refused(run("report", "nowhere"), "nowhere: not a run folder")
    refused(run("report", *runs, "--json", "--markdown"), "--json and --markdown")
    refused(run("report", *runs, "--out", "page.pdf"), "--out page.pdf", ".html")
    refused(
        run("report", *runs, "--out", runs[0] / "record.json" / "page.html"), "page.html", "record.json is a file, not a folder"
    )
    (runs[1] / "record.json").write_text('{"format": ')
    refused(run("report", *runs), str(runs[1] / "record.json"), "not valid JSON")
    (runs[1] / "record.json").write_bytes(b"\xff\xfe")
    refused(run("report", *runs), str(runs[1] / "record.json"), "not UTF-8")
    assert {path.name for path in elsewhere.iterdir()} == {"runs"}


def test_report_in_a_process_of_its_own(runs: list[Path], elsewhere: Path) -> None:
    command = [sys.executable, "-m", "varsmooth", "report", *map(str, runs), "--out", "one.html", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=elsewhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["recipe"] for row in json.loads(done.stdout)["rows"]] == ["vanilla", "smoothing-kneser-ney"]
    assert (elsewhere / "one.html").exists()
