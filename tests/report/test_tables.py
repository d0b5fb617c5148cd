from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from runs_for_tests import MakeRun, result
from varsmooth.experiment.seeds import Spread, spread
from varsmooth.report import ResultsTable, as_json, as_markdown, build_rows
from varsmooth.report.tables import display_columns, explanation


def terminal_text(rows: list, width: int = 200) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(ResultsTable(rows))
    return capture.get()


def test_spread_is_the_sample_standard_deviation() -> None:
    # mean (1 + 2 + 6) / 3 = 3; squared distances 4 + 1 + 9 = 14, over n - 1 = 2
    assert spread([(1, 1.0), (2, 2.0), (3, 6.0)]) == Spread(3.0, pytest.approx(math.sqrt(7)), 3)
    assert spread([(1, 4.0)]) == Spread(4.0, None, 1)
    assert spread([]) is None


def test_two_runs_of_one_seed_are_no_spread() -> None:
    assert spread([(1, 4.0), (1, 6.0)]) == Spread(5.0, None, 1)
    assert spread([(1, 4.0), (1, 6.0), (2, 9.0)]) == Spread(7.0, pytest.approx(math.sqrt(8)), 2)


def test_a_row_holds_every_figure(make_run: MakeRun) -> None:
    runs = [
        make_run(
            seed=seed,
            best={"step": 800, "valid_perplexity": valid},
            results=[
                result(90.0 + seed),
                result(80.0 + 2 * seed, "mean"),
                result(85.0, "mean-input"),
                result(70.0 + seed, temperature=1.2, tuned_temperature=True),
                result(50.0, split="valid"),
            ],
        )
        for seed, valid in ((1, 94.0), (2, 98.0))
    ]
    (row,) = build_rows(runs)
    assert (row.recipe, row.status, row.seeds, row.parameters) == ("vanilla", "finished", (1, 2), 131_072)
    assert row.best_valid == Spread(96.0, pytest.approx(math.sqrt(8)), 2)
    assert list(row.test) == ["mode", "mean", "mean-input", "mode tuned"]
    assert row.test["mode"] == Spread(91.5, pytest.approx(math.sqrt(0.5)), 2)
    assert row.test["mean"] == Spread(83.0, pytest.approx(math.sqrt(2)), 2)
    assert row.test["mean-input"] == Spread(85.0, 0.0, 2)
    assert row.test["mode tuned"] == Spread(71.5, pytest.approx(math.sqrt(0.5)), 2)


def test_a_temperature_set_by_hand_is_left_out_and_the_latest_result_counts(make_run: MakeRun) -> None:
    run = make_run(results=[result(90.0), result(88.0), result(60.0, temperature=1.5)])
    assert build_rows([run])[0].test == {"mode": Spread(88.0, None, 1)}


def test_sampled_predictions_are_named_by_how_they_were_combined(make_run: MakeRun) -> None:
    run = make_run(results=[result(99.0, "sample", samples=20, average="geometric"), result(90.0)])
    assert list(build_rows([run])[0].test) == ["mode", "sample 20 geometric"]


def test_unfinished_runs_have_a_row_of_their_own(make_run: MakeRun) -> None:
    finished, begun = make_run(seed=1, results=[result(90.0)]), make_run(seed=2, status="stopped", best=None)
    rows = build_rows([begun, finished])
    assert [(row.status, row.seeds, row.best_valid) for row in rows] == [
        ("finished", (1,), Spread(95.0, None, 1)),
        ("stopped", (2,), None),
    ]
    columns = {column.header: column.cells for column in display_columns(rows)}
    assert columns["status"] == ["finished", "stopped"]
    assert columns["test mode"] == ["90.00", "-"]


def test_columns_show_means_spreads_and_gaps(make_run: MakeRun) -> None:
    runs = [make_run(seed=seed, results=[result(90.0 + seed)] * (seed < 3), parameters=9_330_000) for seed in (1, 2, 3)]
    columns = {column.header: column.cells for column in display_columns(build_rows(runs))}
    assert list(columns) == ["recipe", "seeds", "size", "valid", "test mode"]
    assert columns["seeds"] == ["1-3"]
    assert columns["size"] == ["9.33M"]
    assert columns["valid"] == ["95.00 ±0.00"]
    assert columns["test mode"] == ["91.50 ±0.71 (2 of 3)"]


def test_the_lowest_of_each_data_set_stands_out(make_run: MakeRun) -> None:
    def on(name: str, recipe: str, value: float, **changes: str) -> object:
        return make_run(recipe, data={"name": name}, results=[result(value)], **changes)

    runs = [on("a", "x", 90.0), on("a", "y", 80.0), on("b", "x", 50.0), on("a", "z", 10.0, status="stopped")]
    columns = {column.header: column for column in display_columns(build_rows(runs))}
    assert columns["data"].cells == ["a", "a", "b", "a"]
    assert columns["test mode"].best == {1}


def test_a_terminal_shows_the_figures_and_no_markup_is_read(make_run: MakeRun) -> None:
    run = make_run("[red]name", results=[result(1234.567)])
    text = terminal_text(build_rows([run]))
    assert "[red]name" in text
    assert "1,234.57" in text
    assert "lower is better" in text


def test_names_and_figures_stay_whole_on_a_narrow_terminal(make_run: MakeRun) -> None:
    predictions = [result(90.25 + seed, predict) for seed in (0, 1) for predict in ("mode", "mean", "mean-input")]
    runs = [make_run("a-rather-long-recipe-name", seed, results=predictions[3 * seed :][:3]) for seed in (0, 1)]
    assert "a-rather-long-recipe-name" in terminal_text(build_rows(runs), width=76)
    for width in (76, 60, 40, 30):
        assert terminal_text(build_rows(runs), width).count("90.75") == 3
        assert terminal_text(build_rows(runs), width).count("±0.71") == 3


def test_markdown_has_one_line_per_row_and_is_escaped(make_run: MakeRun) -> None:
    rows = build_rows([make_run("a|b_c<i>", results=[result(90.0)]), make_run("plain", results=[result(95.0)])])
    lines = as_markdown(rows).splitlines()
    assert lines[0] == "| recipe | seeds | size | valid | test mode |"
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: |"
    assert lines[2] == r"| a\|b\_c&lt;i&gt; | 1 | 131k | **95.00** | **90.00** |"
    assert lines[3] == "| plain | 1 | 131k | 95.00 | 95.00 |"


def test_json_keeps_every_digit_and_has_no_infinity(make_run: MakeRun) -> None:
    runs = [make_run(seed=seed, results=[result(value), result(1 / 3, "mean")]) for seed, value in ((1, math.inf), (2, 90.0))]
    (row,) = json.loads(json.dumps(as_json(build_rows(runs)), allow_nan=False))
    assert row["seeds"] == [1, 2]
    assert row["parameters"] == 131_072
    assert row["test"]["mode"] == {"mean": None, "deviation": None, "seeds": 2}
    assert row["test"]["mean"]["mean"] == 1 / 3


def test_the_explanation_mentions_only_what_is_there(make_run: MakeRun) -> None:
    one = build_rows([make_run(seed=1, results=[result(90.0)])])
    assert "±" not in explanation(one)
    assert "Tuned" not in explanation(one)
    tuned = [result(90.0, tuned_temperature=True, temperature=1.1)]
    two = build_rows([make_run(seed=1, results=tuned), make_run(seed=2, results=tuned)])
    assert "sample standard deviation" in explanation(two)
    assert "Tuned" in explanation(two)
