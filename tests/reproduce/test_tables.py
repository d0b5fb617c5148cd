from __future__ import annotations

import json
import math

import pytest

from varsmooth import InputError
from varsmooth.reproduce import corpus_plan
from varsmooth.reproduce.records import load_group
from varsmooth.reproduce.tables import (
    bands_table,
    best_smoothing,
    calibration_table,
    headline_table,
    main_table,
    predictions_table,
    sampling_table,
    speed_table,
)

PTB = corpus_plan("ptb")
WORD = {"predict": "mean", "method": "variational"}


def cells(table: str, label: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_ours_stands_beside_the_papers(results, keep):
    for seed, test in ((1, 65.0), (2, 66.0), (10, 67.0)):
        keep("vanilla", test, seed)
    keep("element-kneser-ney", 62.0, **WORD)
    found = main_table(results, PTB, "512-paper")
    assert cells(found, "vanilla LSTM, tied") == [
        "1, 2, 10",
        "80.0",
        "70.00 ±1.00",
        "74.0",
        "66.00 ±1.00",
        "8.0",
        "65.00 ±1.00",
    ]
    assert cells(found, "element-wise smoothing, Kneser-Ney") == ["1", "70.5", "66.00", "66.8", "62.00", "4.8", "61.00"]
    assert cells(found, "variational smoothing, blank") == ["-"] * 7
    assert "Not run yet: vanilla LSTM, untied; data noising, linear interpolation;" in found
    assert (
        "Against tied vanilla on test: 4.00 below (element-wise smoothing, Kneser-Ney, at temperature 1); 4.00 below (element"
        in found
    )


def test_which_scheme_is_ahead_is_said_beside_the_paper(results, keep):
    wikitext, group = corpus_plan("wikitext-2"), {"corpus": "wikitext-2", **WORD}
    keep("smoothing-kneser-ney", 76.0, **group)
    assert "linear interpolation is" not in main_table(results, wikitext, "512-paper")
    keep("smoothing-linear-interpolation", 76.6, **group)
    told = "Word smoothing by linear interpolation is 0.6 above Kneser-Ney on test; in the paper 1.3 below."
    assert told in main_table(results, wikitext, "512-paper")


def test_a_row_beyond_the_papers_figure_has_a_minus(results, keep):
    keep("vanilla", 75.5)
    assert cells(main_table(results, PTB, "512-paper"), "vanilla LSTM, tied")[5] == "-1.5"


def test_without_records_there_are_the_papers_figures_alone(results):
    found = main_table(results, PTB, "1024-paper")
    assert cells(found, "data noising, Kneser-Ney") == ["-", "71.4", "-", "67.3", "-", "-", "-"]
    assert found.endswith("\n\nNot run yet.")
    assert predictions_table(results, PTB, "512-paper") == ""
    assert bands_table(results, PTB, "512-paper") == calibration_table(results, PTB, "512-paper") == "Not run yet."


def test_runs_that_did_not_finish_count_for_nothing(results, keep):
    keep("vanilla", 65.0, status="stopped")
    assert cells(main_table(results, PTB, "512-paper"), "vanilla LSTM, tied")[0] == "-"


def test_every_prediction_with_and_without_temperature(results, keep):
    keep("element-kneser-ney", 62.0, **WORD)
    found = cells(predictions_table(results, PTB, "512-paper"), "element-wise smoothing, Kneser-Ney")
    assert found == ["66.50 / 62.50", "66.00 / 62.00", "-", "65.50 / 61.50", "65.00 / 61.00", "-"]


def test_draws_beside_the_papers(results, keep):
    keep("noising-kneser-ney", 65.0, draws=(80.0, 90.0))
    found = sampling_table(results, PTB)
    (line,) = [line for line in found.splitlines() if line.startswith("| data noising, Kneser-Ney | 512")]
    assert line == "| data noising, Kneser-Ney | 512 | 96.5 | 90.00 | 80.00 | 69.00 |"
    assert "Not run yet: variational smoothing, Kneser-Ney, 512; data noising, Kneser-Ney, 1024;" in found
    assert sampling_table(results, corpus_plan("wikitext-2")) == "The paper has no figures for this corpus."


def test_rare_words_of_vanilla_and_of_the_best_smoothing_row(results, keep):
    keep("vanilla", 65.0, rare=6.0)
    keep("smoothing-kneser-ney", 63.0, rare=5.0, **WORD)
    keep("element-kneser-ney", 64.0, rare=1.0, **WORD)
    keep("noising-kneser-ney", 60.0, method="noising")
    assert best_smoothing(PTB, load_group(results, "ptb", "512-paper")).name == "smoothing-kneser-ney"
    found = bands_table(results, PTB, "512-paper")
    assert cells(found, "training count of the target") == ["0", "1-9", "10-99", "100-999", "1,000 or more"]
    assert cells(found, "share of the tokens") == ["0.0%", "10.0%", "20.0%", "30.0%", "40.0%"]
    assert cells(found, "vanilla LSTM, tied") == ["-", f"{math.exp(6):.2f}", *[f"{math.exp(4):.2f}"] * 3]
    assert cells(found, "variational smoothing, Kneser-Ney")[1] == f"{math.exp(5):.2f}"
    assert cells(found, "lower by") == ["-", f"{1 - math.exp(-1):.1%}", "0.0%", "0.0%", "0.0%"]


def test_calibration_before_and_after_the_temperature(results, keep):
    keep("vanilla", 65.0)
    assert cells(calibration_table(results, PTB, "512-paper"), "vanilla LSTM, tied") == ["0.0300", "0.0100", "0.900"]


def test_how_soon_a_row_reaches_the_papers_vanilla(results, keep):
    folder = keep("vanilla", 65.0, steps=6000, ms_per_step=2.0)
    lines = [{"step": step, "valid_perplexity": value} for step, value in ((1000, 95.0), (3000, 80.0), (6000, 69.0))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keep("vanilla-untied", 84.0, steps=6000, ms_per_step=2.0)
    found = speed_table(results, PTB, "512-paper")
    assert cells(found, "model") == ["steps to 80.0 on valid", "minutes to it", "minutes in all"]
    assert cells(found, "vanilla LSTM, tied") == ["3,000", "0.1", "0.2"]
    assert cells(found, "vanilla LSTM, untied") == ["-", "-", "0.2"]


def test_the_headline_has_eight_rows_and_both_settings(results, keep):
    keep("vanilla", 66.0)
    keep("vanilla", 64.0, group="512-tuned")
    keep("vanilla", 83.0, corpus="wikitext-2", group="1024-paper")
    found = headline_table(results)
    rows = [line for line in found.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 8
    assert rows[0] == "| vanilla LSTM, tied | 512 | 74.0 | 66.00 | 64.00 | 86.6 | - | - |"
    assert rows[4] == "| vanilla LSTM, tied | 1024 | 70.2 | - | - | 81.0 | 83.00 | - |"
    assert "Not run yet" not in found
    assert "against tied vanilla" not in found
    keep("element-kneser-ney", 65.5, **WORD)
    keep("element-kneser-ney", 64.25, group="512-tuned", **WORD)
    told = "0.50 below (Penn Treebank, 512 units, its setting); 0.25 above (Penn Treebank, 512 units, tuned)."
    assert headline_table(results).endswith(told)


def test_records_of_one_row_that_differ_are_refused(results, keep):
    keep("vanilla", 65.0, 1)
    keep("vanilla", 64.0, 2, config={"train": {"seed": 2, "lr": 0.002}})
    with pytest.raises(InputError, match=r"the records of vanilla differ in train\.lr"):
        main_table(results, PTB, "512-paper")


def test_a_folder_must_be_named_after_its_seed(results, keep):
    keep("vanilla", 65.0).rename(results / "ptb" / "512-paper" / "vanilla-seed2")
    with pytest.raises(InputError, match="NAME-seedN"):
        main_table(results, PTB, "512-paper")
