"""What the documents say is what the code does and what the records hold."""

from __future__ import annotations

import csv
import importlib
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from varsmooth.cli import app
from varsmooth.config import parse_toml
from varsmooth.demo import ARMS
from varsmooth.keys import configuration_page
from varsmooth.report.runs import load_run
from varsmooth.report.tables import as_markdown, build_rows
from varsmooth.sweep import parse_study
from varsmooth.train.record import result_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCALING = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


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


def test_the_page_of_configuration_keys_is_that_of_the_code():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page(), "write it anew: python -m varsmooth.keys > docs/configuration.md"


def test_the_demonstrations_table_is_that_of_its_records():
    records = sorted((ROOT / "results" / "demo").glob("*-[2-6]/record.json"))
    assert len(records) == 15
    runs = [load_run(record.parent) for record in records]
    assert all(run.finished and run.record["commit"] and "modified" not in run.record["commit"] for run in runs)
    assert as_markdown(build_rows(runs)).strip() in README
    tuned = {arm.replace("/", "-"): settings for arm, settings in ARMS.items()}
    trials = json.loads((ROOT / "results" / "demo" / "tuning.json").read_text(encoding="utf-8"))
    for arm in trials["arms"]:
        assert "\nseed = 1\n" in arm["best_config"], "with which the arms were tuned, so that it is not in the table"
        found = arm["best"]["params"]
        assert tuned[arm["arm"]].keys() == found.keys()
        for key, value in found.items():
            told = tuned[arm["arm"]][key]
            assert told == (value if isinstance(value, str) else pytest.approx(value, rel=0.005)), "three digits or so"


def test_other_schemes_on_the_demonstrations_text_are_as_their_records_say():
    page = (ROOT / "docs" / "demonstration.md").read_text(encoding="utf-8")
    _, _, *table = re.findall(r"^\| ([a-z-]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert len(table) == 7
    for row, *told in table:
        places = [ROOT / "results" / folder for folder in ("demo", "schemes")]
        runs = [load_run(path.parent) for place in places for path in place.glob(f"{row}-[2-6]/record.json")]
        assert len(runs) == 5
        assert all(run.finished and "modified" not in run.record["commit"] for run in runs)
        tests = [[result_of(run.record, "test", tuned=tuned) for run in runs] for tuned in (False, True)]
        figures = [
            [run.best_valid for run in runs],
            [found["perplexity"] for found in tests[0]],
            [found["scaled"]["perplexity"] for found in tests[1]],
        ]
        assert told == [f"{statistics.fmean(each):.2f} ±{statistics.stdev(each):.2f}" for each in figures]


def test_what_scales_bring_the_demonstration_is_what_its_records_say():
    def scaled(arm: str, predict: str) -> float:
        records = [load_run(path.parent).record for path in (ROOT / "results" / "demo").glob(f"{arm}-[2-6]/record.json")]
        wanted = ("test", predict, True)
        found = [r for it in records for r in it["results"] if (r["split"], r["predict"], r["tuned_temperature"]) == wanted]
        assert len(found) == 5
        return statistics.fmean(result["scaled"]["perplexity"] for result in found)

    plain, word, element = (
        scaled("vanilla", "mode"),
        scaled("smoothing-kneser-ney", "mean"),
        scaled("element-kneser-ney", "mean"),
    )
    told = " ".join(README.split())
    by_mean = f"by the mean Kneser-Ney smoothing has {word:.2f} and element-wise smoothing {element:.2f}."
    assert f"test perplexity of {plain:.2f}, and {by_mean}" in told
    assert f"So {plain - word:.1f} and {plain - element:.1f} remain for smoothing itself" in told
    for arm, mean in (("smoothing-kneser-ney", word), ("element-kneser-ney", element)):
        assert abs(scaled(arm, "mode") - mean) < 0.2


def test_the_output_of_the_second_command_is_that_of_its_record():
    record = load_run(ROOT / "results" / "small").record
    assert "modified" not in record["commit"]
    best = record["best"]
    assert f"best model: step {best['step']}, valid perplexity {best['valid_perplexity']:.2f}\n" in README
    tests = [it for it in record["results"] if it["split"] == "test"]
    plain, tuned = ([it for it in tests if it["tuned_temperature"] == is_tuned] for is_tuned in (False, True))
    assert len(plain) == len(tuned) == 3
    for result, at in zip(plain, tuned, strict=True):
        figures = f"{at['perplexity']:.2f} at its tuned temperature, {at['scaled']['perplexity']:.2f} with tuned scales"
        assert f"test perplexity {result['perplexity']:.2f} by {result['predict']}, {figures}\n" in README


def bench_medians() -> dict[tuple[str, ...], float]:
    """Return the newest median of each measurement by quantity, size, vocabulary and scheme; a CPU's sizes are its own."""
    with (ROOT / "results" / "bench.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["quantity"], row["size"], row["vocabulary"], row["scheme"]): float(row["median"]) for row in rows}


def test_the_performance_figures_are_those_of_the_record():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    medians = bench_medians()
    found = re.findall(r"^\| ([\w ]+) \| (\d+) \| ([\d,]+) \| ([\w ]+) \|.*\| ([\d.]+) (?:ms|x|MB) \|$", text, re.MULTILINE)
    assert len(found) >= 28
    for quantity, size, vocabulary, scheme, figure in found:
        median = medians[quantity, size, vocabulary.replace(",", ""), scheme]
        assert float(figure) == pytest.approx(median, abs=0.0006), (quantity, size, vocabulary, scheme)


PARTS = {
    "recurrent stack, forward and backward": ("recurrent stack", "vanilla"),
    "linear layer, softmax and cross-entropy": ("output loss", "vanilla"),
    "optimiser with clipping and penalty": ("optimiser", "vanilla"),
    "drawing the output table, dropout alone": ("table draw", "vanilla"),
    "drawing the output table element-wise": ("table draw", "element KN batch"),
    "look-up, dropout alone": ("look-up", "vanilla"),
    "look-up element-wise, a table for each sequence": ("look-up", "element KN sequence"),
}


def test_the_parts_of_a_step_are_those_of_the_record():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w, -]+) \|[^|]*\| (\d+) \| \d+ \| (\d+) \| \d+ \|$", text, re.MULTILINE)
    assert {part for part, _, _ in rows} == set(PARTS)
    for part, narrow, wide in rows:
        quantity, scheme = PARTS[part]
        medians = [bench_medians()[quantity, size, "10000", scheme] for size in ("512", "1024")]
        assert [int(narrow), int(wide)] == [round(1000 * median) for median in medians], part


def test_the_readmes_milliseconds_are_those_of_the_record():
    names = ["eager step/vanilla", "step/vanilla", "step/word KN", "step/element KN sequence", "fleet of 8/vanilla"]
    section = README[README.index("## On a GPU") : README.index("## Sweeps")]
    figures = [float(figure) for figure in re.findall(r"\| (\d+\.\d+) \|$", section, re.MULTILINE)]
    medians = [bench_medians()[quantity, "512", "10000", scheme] for quantity, scheme in (name.split("/") for name in names)]
    assert figures == [round(median, 1 if median > 10 else 2) for median in medians]


def record(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_bytes()))


def test_the_figures_on_large_texts_are_those_of_the_record():
    found = record("large_corpus")
    assert found["ids"]["equal"]
    encoding, counts, again = found["text"]["stages"]
    lines = [
        f"| text to mapped ids | {_row(encoding)} |",
        f"| ids to counts, out of core: {counts['distinct_bigrams']:,} distinct bigrams | {_row(counts)} |",
        f"| opening it again | {_row(again)} |",
        f"{encoding['tokens']:,} tokens, {encoding['words']:,} words",
    ]
    for name, words in (("quarter", "25 million"), ("out_of_core", "100 million")):
        ids = found["ids"][name]
        disk = ids["peak_disk_bytes"] / 1e6
        lines.append(f"{words}: {ids['seconds']:.1f} s, {ids['peak_resident_bytes'] / 1e9:.2f} GB, {disk:.0f} MB")
    memory, billion = found["ids"]["in_memory"], found["billion_computed"]
    lines.append(f"100 million: {memory['seconds']:.1f} s, {memory['peak_resident_bytes'] / 1e9:.2f} GB")
    disk, resident = billion["disk_bytes"] / 1e9, billion["peak_resident_bytes"] / 1e9
    lines.append(f"a billion: {billion['seconds']:.0f} s, {disk:.1f} GB on disk, {resident:.2f} GB of memory")
    for line in lines:
        assert line in SCALING.replace(" on disk; 100", "; 100"), line
    assert found["text"]["peak_resident_bytes"] < 2e9
    assert f"in {found['text']['seconds_to_counts']:.0f} s on two cores, within 1.8 GB" in README


def _row(stage: dict[str, Any]) -> str:
    sizes = (f"{stage[f'peak_{kind}_bytes'] / 1e9:.2f} GB" for kind in ("resident", "anonymous", "disk"))
    return " | ".join([f"{stage['seconds']:.1f}", *sizes])


def test_the_figures_on_sweeps_are_those_of_the_record():
    found = record("sweep_tpe")
    assert found["median_at_least_as_good"]
    best, grid = f"{found['tpe']['median_best']:.2f}", f"{found['grid']['best']:.2f}"
    for text in (SCALING, (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")):
        assert best in text
        assert grid in text


def test_the_figures_on_the_papers_grid_are_those_of_the_record():
    found = record("paper_grid")
    best = found["short_against_long"]["pairs"][0]
    assert best["params"] == {"train.lr": 0.004, "train.l2": 0.0001, "smoothing.gamma": 0.1}
    assert best["short"] == min(run["valid_perplexity"] for run in found["short"]["runs"])
    (test,) = [run["test_perplexity"] for run in found["long"]["runs"] if run["valid_perplexity"] == best["long"]]
    assert f"a test perplexity of {test:.2f}" in SCALING
    for text in (SCALING, (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")):
        assert f"{found['short']['minutes']:.2f} minutes" in text
        assert f"{found['long']['minutes']:.2f}" in text
        assert f"rank correlation{' of' if text is SCALING else ''} {found['short_against_long']['spearman']:.2f}" in text


def test_what_grows_is_what_the_bench_measured():
    medians = bench_medians()
    for vocabulary, words in (("10000", "10,000 words"), ("33278", "33,278")):
        for scheme in ("vanilla", "element KN batch"):
            assert f"{words}: {medians['step', '512', vocabulary, scheme]:.3f} ms" in SCALING
    for scheme in ("vanilla", "element KN batch"):
        narrow, wide = (medians["step", width, "10000", scheme] for width in ("512", "1024"))
        assert f"512 units: {narrow:.3f} ms; 1,024: {wide:.3f} ms" in SCALING
    for number in (1, 2, 4, 8):
        assert f"{number}: {medians[f'fleet of {number}', '512', '10000', 'vanilla']:.3f} ms" in SCALING
    for width, words in (("64", "64 units"), ("128", "128")):
        assert f"{words}: {medians['step', width, '4000', 'vanilla']:.1f} ms" in SCALING


def test_the_drop_ins_cost_is_that_of_the_record():
    text = (ROOT / "docs" / "drop-in.md").read_text(encoding="utf-8")
    for data, words in (("ptb", "10,000"), ("wikitext-2", "33,278")):
        found = json.loads((ROOT / "results" / "decoder" / f"{data}-overhead.json").read_bytes())
        assert set(found["engines"].values()) == {"graph"}
        over = {arm: f"{found['ratio_to_dropout'][arm]['median']:.3f} x" for arm in ("word", "element")}
        dropout = found["ms_per_step"]["dropout"]
        assert f"| {data} | {words} | {dropout:.2f} ms | {over['word']} | {over['element']} |" in text


def test_what_the_drop_in_brings_a_decoder_is_what_the_records_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    decoder_records = importlib.import_module("decoder_records")
    text = (ROOT / "docs" / "drop-in.md").read_text(encoding="utf-8")
    folder = ROOT / "results" / "decoder"
    assert decoder_records.table(folder, [1, 2, 3]) in text

    def over_seeds(data: str, arm: str) -> list[float]:
        best = decoder_records.chosen(folder, data, arm, 1)
        paths = folder.glob(f"{data}-{arm}-{best.name}-[123].json")
        return [decoder_records.own(json.loads(path.read_bytes()), "test") for path in paths]

    gains = []
    for data, title in (("ptb", "Penn Treebank"), ("wikitext-2", "WikiText-2")):
        figures = [over_seeds(data, arm) for arm in ("dropout", "word", "element")]
        assert {len(some) for some in figures} == {3}
        means = [statistics.fmean(some) for some in figures]
        gains += [means[0] - mean for mean in means[1:]]
        cells = [f"{mean:.2f} ±{statistics.stdev(some):.2f}" for mean, some in zip(means, figures, strict=True)]
        assert f"| {title} | {cells[0]} | {cells[1]} | **{cells[2]}** |" in README
    told = f"{min(gains):.1f} to {max(gains):.1f}"
    assert f"Test perplexity {told} lower than dropout alone" in text
    assert f"takes {told} off the test perplexity of tuned dropout" in README


def test_the_study_of_the_documents_is_one(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", SCALING, re.DOTALL)
    study = parse_study(parse_toml(text, "docs"), "docs", tmp_path)
    assert ([arm.name for arm in study.arms], study.seeds) == (["vanilla-small", "kn"], (2, 3, 4))
    optional = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert parse_study(parse_toml(optional, "docs"), "docs", tmp_path).budget.total_steps == 40_000


def test_links_lead_somewhere():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
