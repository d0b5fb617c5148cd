from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from varsmooth import InputError
from varsmooth.report.runs import load_run
from varsmooth.reproduce import build_page, corpora, named_experiments, stale_documents, write_documents
from varsmooth.reproduce.documents import BEGIN, DOCUMENTS, filled
from varsmooth.reproduce.experiment_tables import curves, gain_curves
from varsmooth.reproduce.page import corpus_page
from varsmooth.reproduce.records import Records

ROOT = Path(__file__).parents[2]


def test_the_committed_documents_say_what_the_committed_records_say():
    page = build_page(ROOT / "results" / "reproduce")
    assert stale_documents(ROOT, page) == []


def test_the_readme_tells_where_the_tuned_rows_meet():
    means = []
    for row in ("vanilla", "noising-kneser-ney", "smoothing-kneser-ney", "element-kneser-ney"):
        runs = [load_run(folder) for folder in (ROOT / "results/reproduce/ptb/512-tuned").glob(f"{row}-seed*")]
        assert len(runs) == 3
        means.append(statistics.fmean(_tuned_test_perplexity(run.record) for run in runs))
    told = f"between {min(means):.1f} and {max(means):.1f}, each at its tuned temperature"
    assert told in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_the_readme_tells_what_smoothing_gains_on_little_text():
    found = curves(named_experiments()["data-size"], Records(ROOT / "results/reproduce"), "wikitext-2")
    plain = dict(found["vanilla"])
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    gains = {label: dict(points) for label, points in gain_curves(found).items()}
    word, element, noising = (
        [f"{gains[label][share].mean:.1f} ±{gains[label][share].deviation:.1f}" for share in (0.05, 0.1)]
        for label in ("word smoothing, Kneser-Ney", "element-wise smoothing, Kneser-Ney", "data noising, Kneser-Ney")
    )
    assert f"{word[0]} off the plain model's test perplexity of {plain[0.05].mean:.1f}" in text
    assert f"on a tenth {word[1]} off {plain[0.1].mean:.1f}, element-wise smoothing {element[0]} and {element[1]}," in text
    assert f"data noising {noising[0]} and {noising[1]}, every arm" in text


def _tuned_test_perplexity(record):
    own = record["config"]["smoothing"]["predict"]
    wanted = ("test", own, True, None)
    keys = ("split", "predict", "tuned_temperature", "samples")
    (found,) = [result["perplexity"] for result in record["results"] if tuple(result[key] for key in keys) == wanted]
    return found


def test_the_documents_show_every_table():
    marked = {name for document in DOCUMENTS for name in BEGIN.findall((ROOT / document).read_text(encoding="utf-8"))}
    for corpus in ("ptb", "wikitext-2"):
        tables = {f"{corpus}/{size}-{setting}" for size in (512, 1024) for setting in ("paper", "tuned")}
        assert tables | {f"{corpus}/time", f"{corpus}/chosen"} <= marked
        own = {f"{corpus}/512-{setting}/{part}" for setting in ("paper", "tuned") for part in ("bands", "calibration")}
        assert own <= marked
    assert {"ptb/gamma", "ptb/ablation", "ptb/sampling", "wikitext-2/data-size", "cost", "cost/time"} <= marked


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text("# Mine\n\n<!-- reproduce: ptb/gamma -->\nold\n<!-- end -->\n\nstays\n")
    (root / "docs" / "reproduction.md").write_text(
        "<!-- reproduce: ptb/512-paper -->\n<!-- end -->\nbetween\n<!-- reproduce: ptb/gamma -->\n<!-- end -->\n"
    )
    return root


def test_what_is_between_the_markers_is_built_from_records(root, results, keep):
    keep("vanilla", 65.0)
    for gamma in (0.05, 0.1):
        keep("smoothing-kneser-ney", 66.0, group="gamma", name=f"word-{gamma}")
    page = build_page(results)
    stale = stale_documents(root, page)
    assert stale == [*DOCUMENTS, Path("docs/images/reproduction/ptb-gamma.png")]
    written = write_documents(root, page)
    assert set(written) == {root / name for name in stale}
    assert stale_documents(root, page) == []
    assert write_documents(root, page) == [root / stale[2]], "a second time, the picture alone"
    readme, document = ((root / name).read_text() for name in DOCUMENTS)
    assert readme.startswith("# Mine\n\n<!-- reproduce: ptb/gamma -->\n![Development perplexity over gamma")
    assert "](docs/images/reproduction/ptb-gamma.png)" in readme
    assert readme.endswith("<!-- end -->\n\nstays\n"), "all else is a person's"
    assert "](images/reproduction/ptb-gamma.png)" in document
    assert "\n<!-- end -->\nbetween\n<!-- reproduce: ptb/gamma -->\n" in document
    assert "| vanilla LSTM, tied | 1 | 80.0 | 69.00 | 74.0 | 65.00 | 9.0 | 64.00 |" in document


def test_the_readme_shows_the_headline_the_summary_and_the_figures():
    assert {"headline", "summary", "figures"} == set(BEGIN.findall((ROOT / "README.md").read_text()))


def test_the_page_of_a_corpus_leaves_out_what_has_no_figure_of_ours(results, keep):
    ptb = corpora()["ptb"]
    page = build_page(results)
    assert set(page.parts) - page.empty == {"figures"}
    assert corpus_page(page, ptb) == "# Penn Treebank\n\nNot run yet.\n"
    keep("vanilla", 65.0)
    keep("vanilla", 64.0, group="512-tuned", corpus="wikitext-2")
    keep("element-kneser-ney", 60.0, group="gamma", name="unplanned")
    page = build_page(results)
    of_table = [f"512-paper{part}" for part in ("", "/predictions", "/speed", "/calibration")]
    names = re.findall(r"^## (.+)$", corpus_page(page, ptb), re.MULTILINE)
    others = ["gamma", "ablation", "rare-words", "rare-words/bands"]
    assert names == [*of_table, *others], "of gamma, that its record is of something else"


def test_a_changed_figure_is_noticed(root, results, keep):
    keep("vanilla", 65.0)
    page = build_page(results)
    write_documents(root, page)
    path = root / "docs" / "reproduction.md"
    path.write_text(path.read_text().replace("65.00", "64.00"))
    assert stale_documents(root, page) == [Path("docs/reproduction.md")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- reproduce: ptb/gama -->\n<!-- end -->", "no part called 'ptb/gama'; did you mean 'ptb/gamma'"),
        ("<!-- reproduce: ptb/gamma -->\n", "needs its own"),
        ("<!-- reproduce: ptb/gamma -->\n<!-- reproduce: cost -->\n<!-- end -->", "needs its own"),
    ],
)
def test_bad_markers_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        filled(text, {"ptb/gamma": "", "cost": ""}, "README.md")


def test_documents_that_are_not_there_are_not_made_up(tmp_path, results):
    with pytest.raises(InputError, match=r"neither README.md nor docs"):
        write_documents(tmp_path, build_page(results))
