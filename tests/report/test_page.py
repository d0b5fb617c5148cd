from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from runs_for_tests import MakeRun, result
from varsmooth.errors import InputError
from varsmooth.report import RunSummary, Sample, write_page

FALLING = [(40, 900.0), (80, 200.0), (120, 100.0)]
HOSTILE = """<script>alert("x")</script>&amp;'"><img src=http://evil.example/x.png onerror=alert(1)>"""
VOID = {"meta", "img", "source"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed by its own tag, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def page_of(tmp_path: Path, runs: list[RunSummary], **options: object) -> Page:
    path = tmp_path / "pages" / "report.html"
    write_page(path, runs, **{"title": "Report", **options})  # type: ignore[arg-type]
    return Page(path.read_text(encoding="utf-8"))


def assert_self_contained(page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "base", "a"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert not re.search(r"https?:|//", value) or value.startswith("data:image/png;base64,"), (tag, name)
        if name in ("src", "srcset", "href"):
            assert value.startswith("data:image/png;base64,"), (tag, name)


def test_the_page_says_what_was_run_and_what_came_out(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("vanilla", seed, curve=FALLING, results=[result(90.0 + seed)]) for seed in (1, 2)]
    runs.append(make_run("element-wise", curve=FALLING, results=[result(88.0)]))
    page = page_of(tmp_path, runs, title="What came out", notes=["First note.", "Second note."])
    for expected in (
        "What came out",
        "3 runs of 2 recipes. Data: python (20,000 training, 2,000 development, 2,100 test tokens; a vocabulary of "
        "1,000 words). Trained in 3 min 3 s in all on Some Processor, 2 cores.",
        "First note.",
        "91.50 ±0.71",
        "element-wise, seed 1: finished, best development perplexity 95.00",
        "varsmooth 0.1.0, torch 2.13.0",
        "[train]\nseed = 1\nlr = 0.003",
    ):
        assert expected in page.text
    assert page.tags.count("details") == 3
    assert page.tags.count("img") == 1
    assert ("td", "class", "number best") in page.attributes


def test_the_page_needs_nothing_from_outside(make_run: MakeRun, tmp_path: Path) -> None:
    page = page_of(tmp_path, [make_run(curve=FALLING, results=[result(90.0)])])
    assert_self_contained(page)
    raw = (tmp_path / "pages" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|https?://", raw)
    assert "prefers-color-scheme: dark" in raw


def test_hostile_text_is_only_text(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(
        HOSTILE,
        curve=FALLING,
        status=HOSTILE,
        results=[result(90.0, HOSTILE)],
        config={HOSTILE: {HOSTILE: HOSTILE}, "name": HOSTILE},
        versions={HOSTILE: HOSTILE},
        hardware={"name": HOSTILE},
        data={"name": HOSTILE, "tokens": {"train": HOSTILE}, "vocab_size": HOSTILE},
        stopped_because=HOSTILE,
        commit="\ud800",
    )
    samples = [Sample(HOSTILE, "scored", HOSTILE), Sample(HOSTILE, "generated", HOSTILE, prompt=HOSTILE + "\ud800")]
    page = page_of(tmp_path, [run, make_run("plain")], title=HOSTILE, notes=[HOSTILE], samples=samples)
    assert_self_contained(page)
    assert page.tags.count("img") == 1
    assert page.text.count(HOSTILE) >= 15


def test_samples_are_shown_in_two_kinds(make_run: MakeRun, tmp_path: Path) -> None:
    samples = [
        Sample("vanilla", "scored", "return the list", perplexity=43.219, unknown=1),
        Sample("element-wise", "generated", "the object is closed", prompt="when"),
        Sample("vanilla", "generated", "before it is opened", prompt="before"),
    ]
    page = page_of(tmp_path, [make_run()], samples=samples)
    for expected in ("Scored sentences", "return the list", "43.22", "Generated sentences", "when", "the object is closed"):
        assert expected in page.text
    assert page.text.count("before") == 1
    assert "Samples" not in page_of(tmp_path, [make_run()]).text


def test_a_run_that_has_only_begun(make_run: MakeRun, tmp_path: Path) -> None:
    bare = dict.fromkeys(("parameters", "data", "config", "best", "results", "versions", "hardware", "seconds", "steps"))
    page = page_of(tmp_path, [make_run(status="running", **bare)])
    assert "1 run of 1 recipe. Data: unknown data." in page.text
    assert "None of the runs has been evaluated yet" in page.text
    assert "Not evaluated on the test set yet" in page.text
    assert "img" not in page.tags


def test_without_matplotlib_the_page_says_what_is_missing(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = page_of(tmp_path, [make_run(curve=FALLING, results=[result(90.0)])])
    assert "pip install 'varsmooth[plot]'" in page.text
    assert "90.00" in page.text
    assert "img" not in page.tags


def test_a_page_that_cannot_be_written_leaves_the_old_one(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    (tmp_path / "file").write_text("old")
    with pytest.raises(InputError, match=r"page\.html: cannot be written"):
        write_page(tmp_path / "file" / "page.html", [run], title="x")
    with pytest.raises(InputError, match="no runs"):
        write_page(tmp_path / "file", [], title="x")
    assert (tmp_path / "file").read_text() == "old"
