from __future__ import annotations

import json
import math

import pytest

from varsmooth import InputError
from varsmooth.reproduce import Choice, corpus_plan, write_chosen
from varsmooth.reproduce.markdown import NOT_RUN, PagePart
from varsmooth.reproduce.records import Records
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


def cells(part: PagePart, label: str) -> list[str]:
    (line,) = [line for line in part.text.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_ours_stands_beside_the_papers(results, keep):
    for seed, test in ((1, 65.0), (2, 66.0), (10, 67.0)):
        keep("vanilla", test, seed)
    keep("element-kneser-ney", 62.0)
    found = main_table(Records(results), PTB, "512-paper")
    assert cells(found, "vanilla LSTM, tied") == [
        "1, 2, 10",
        "80.0",
        "70.00 ±1.00",
        "74.0",
        "66.00 ±1.00",
        "8.0",
        "65.00 ±1.00",
        "64.75 ±1.00",
    ]
    element = ["1", "70.5", "66.00", "66.8", "62.00", "4.8", "61.00", "60.75"]
    assert cells(found, "element-wise smoothing, Kneser-Ney") == element
    assert cells(found, "variational smoothing, blank") == ["-"] * 8
    assert "Not run yet: vanilla LSTM, untied; data noising, linear interpolation;" in found.text
    told = "Against tied vanilla, test perplexity. element-wise smoothing, Kneser-Ney, at temperature 1: 3.00 better;"
    assert told in found.text, "with the seed that both have"
    keep("element-kneser-ney", 70.0, 11)
    assert told in main_table(Records(results), PTB, "512-paper").text


def test_a_row_that_lacks_a_seed_is_not_the_best(results, keep):
    for seed in (1, 2):
        keep("vanilla", 65.0, seed)
        keep("smoothing-kneser-ney", 64.0, seed)
    keep("element-kneser-ney", 60.0, 1)
    keep("element-kneser-ney", 60.0, 2, status="failed", stopped_because="not finite")
    found = main_table(Records(results), PTB, "512-paper").text
    assert "variational smoothing, Kneser-Ney, the best smoothing row on valid" in found


def test_scales_that_gave_no_number_are_infinite_and_not_missing(results, keep):
    keep("vanilla", 65.0, 1)
    path = keep("vanilla", 65.0, 2) / "record.json"
    path.write_text(path.read_text().replace('"perplexity": 63.75', '"perplexity": null'))
    assert cells(main_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")[-1] == "inf"


def test_which_scheme_is_ahead_is_said_beside_the_paper(results, keep):
    wikitext, group = corpus_plan("wikitext-2"), {"corpus": "wikitext-2"}
    keep("smoothing-kneser-ney", 76.0, **group)
    assert "linear interpolation is" not in main_table(Records(results), wikitext, "512-paper").text
    keep("smoothing-linear-interpolation", 76.6, **group)
    told = "Word smoothing by linear interpolation is 0.60 above Kneser-Ney on test; in the paper 1.3 below."
    assert told in main_table(Records(results), wikitext, "512-paper").text
    keep("smoothing-kneser-ney", 77.0, 2, **group)
    keep("smoothing-linear-interpolation", 75.6, 2, **group)
    told = "linear interpolation is 0.40 ±0.71 below Kneser-Ney on test; in the paper 1.3 below."
    assert told in main_table(Records(results), wikitext, "512-paper").text


def test_a_row_beyond_the_papers_figure_has_a_minus(results, keep):
    keep("vanilla", 75.5)
    assert cells(main_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")[5] == "-1.5"


def test_without_records_there_are_the_papers_figures_alone(results):
    found = main_table(Records(results), PTB, "1024-paper")
    assert cells(found, "data noising, Kneser-Ney") == ["-", "71.4", "-", "67.3", "-", "-", "-", "-"]
    assert found.text.endswith("\n\nNot run yet.")
    assert found.empty
    for kind in (predictions_table, speed_table, bands_table, calibration_table):
        assert kind(Records(results), PTB, "512-paper") == NOT_RUN


def test_runs_that_did_not_finish_count_for_nothing(results, keep):
    keep("vanilla", 65.0, status="stopped")
    assert cells(main_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")[0] == "-"


def test_every_prediction_with_and_without_temperature(results, keep):
    keep("element-kneser-ney", 62.0)
    found = cells(predictions_table(Records(results), PTB, "512-paper"), "element-wise smoothing, Kneser-Ney")
    assert found == ["66.50 / 62.50", "66.00 / 62.00", "-", "65.50 / 61.50", "65.00 / 61.00", "-"]


def test_draws_beside_the_papers(results, keep):
    keep("noising-kneser-ney", 65.0, draws=(80.0, 90.0))
    found = sampling_table(Records(results), PTB).text
    (line,) = [line for line in found.splitlines() if line.startswith("| data noising, Kneser-Ney | 512")]
    assert line == "| data noising, Kneser-Ney | 512 | 96.5 | 90.00 | 80.00 | 69.00 |"
    assert "Not run yet: variational smoothing, Kneser-Ney, 512; data noising, Kneser-Ney, 1024;" in found
    nothing = sampling_table(Records(results), corpus_plan("wikitext-2"))
    assert nothing == PagePart("The paper has no figures for this corpus.", empty=True)


def test_rare_words_of_vanilla_and_of_the_best_smoothing_row(results, keep):
    keep("vanilla", 65.0, rare=6.0)
    keep("smoothing-kneser-ney", 63.0, rare=5.0)
    keep("element-kneser-ney", 64.0, rare=1.0)
    keep("noising-kneser-ney", 60.0)
    assert best_smoothing(PTB, Records(results).runs("ptb", "512-paper")).name == "smoothing-kneser-ney"
    found = bands_table(Records(results), PTB, "512-paper")
    assert cells(found, "training count of the target") == ["0", "1-9", "10-99", "100-999", "1,000 or more"]
    assert cells(found, "share of the tokens") == ["0.0%", "10.0%", "20.0%", "30.0%", "40.0%"]
    assert cells(found, "vanilla LSTM, tied") == ["-", f"{math.exp(6):.2f}", *[f"{math.exp(4):.2f}"] * 3]
    assert cells(found, "variational smoothing, Kneser-Ney")[1] == f"{math.exp(5):.2f}"
    assert cells(found, "change") == ["-", f"{math.exp(-1) - 1:+.1%}", "+0.0%", "+0.0%", "+0.0%"]


def test_calibration_before_and_after_the_temperature(results, keep):
    keep("vanilla", 65.0)
    assert cells(calibration_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied") == ["0.0300", "0.0100", "0.900"]


def test_how_soon_a_row_reaches_the_papers_vanilla(results, keep):
    folder = keep("vanilla", 65.0, steps=6000)
    lines = [{"step": step, "valid_perplexity": value} for step, value in ((1000, 95.0), (3000, 80.0), (6000, 69.0))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keep("vanilla-untied", 84.0, steps=6000)
    found = speed_table(Records(results), PTB, "512-paper")
    assert cells(found, "model") == ["steps to 80.0 on valid", "steps in all"]
    assert cells(found, "vanilla LSTM, tied") == ["3,000", "6,000"]
    assert cells(found, "vanilla LSTM, untied") == ["- (0 of 1 reach it)", "6,000"]
    keep("vanilla", 77.0, 2, steps=6000)
    assert cells(speed_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")[0] == "- (1 of 2 reach it)"


def test_the_headline_has_eight_rows_and_both_settings(results, keep):
    keep("vanilla", 66.0)
    keep("vanilla", 64.0, group="512-tuned")
    keep("vanilla", 83.0, corpus="wikitext-2", group="1024-paper")
    found = headline_table(Records(results)).text
    rows = [line for line in found.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 8
    assert rows[0] == "| vanilla LSTM, tied | 512 | 74.0 | 66.00 | 64.00 | 86.6 | - | - |"
    assert rows[4] == "| vanilla LSTM, tied | 1024 | 70.2 | - | - | 81.0 | 83.00 | - |"
    assert "Not run yet" not in found


def test_records_of_one_row_that_differ_are_refused(results, keep):
    keep("vanilla", 65.0, 1, group="another")
    keep("vanilla", 64.0, 2, group="another", config={"train": {"lr": 0.002}})
    with pytest.raises(InputError, match=r"the records of vanilla differ in train\.lr"):
        Records(results).runs("ptb", "another")


def test_a_record_from_before_a_setting_was_there_has_its_default(results, keep):
    older = keep("vanilla", 65.0, 1) / "record.json"
    keep("vanilla", 64.0, 2)
    content = json.loads(older.read_text())
    del content["config"]["train"]["warm_up"], content["config"]["model"]["bias"]
    older.write_text(json.dumps(content))
    assert len(Records(results).runs("ptb", "512-paper")["vanilla"]) == 2
    content["config"]["train"]["unheard_of"] = 1
    older.write_text(json.dumps(content))
    found = Records(results).group("ptb", "512-paper")
    assert ([run.seed for run in found.runs["vanilla"]], found.left_out) == ([2], ("vanilla-seed1",))


def test_records_of_other_values_or_another_text_are_named_and_not_shown(results, keep):
    keep("vanilla", 65.0, 1)
    keep("vanilla", 60.0, 2, config={"train": {"lr": 0.002}})
    keep("vanilla", 63.0, 3, config={"train": {"threads": 7, "save_every": 3}})
    keep("element-kneser-ney", 50.0, data={"name": "ptb", "checksums": {"train": "abc"}})
    keep("vanilla-untied", 70.0, 1, status="failed", stopped_because="not finite")
    keep("vanilla-untied", 70.0, 2, status="failed", stopped_because="out of memory")
    records = Records(results)
    found = main_table(records, PTB, "512-paper")
    assert cells(found, "vanilla LSTM, tied")[0] == "1, 3"
    assert "another text: element-kneser-ney-seed1; vanilla-seed2.\n" in found.text
    assert "The loss was not finite: vanilla-untied-seed1.\n" in found.text
    assert records.group("ptb", "512-paper").diverged == ("vanilla-untied-seed1",)
    write_chosen(results / "ptb" / "chosen.toml", {("paper", 512, "vanilla"): Choice({"train.lr": 0.002})})
    assert cells(main_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")[0] == "2", "what is planned has changed"


def test_a_setting_that_a_record_is_too_old_to_know_has_its_default(results, keep):
    path = keep("vanilla", 65.0) / "record.json"
    record = json.loads(path.read_text())
    for name, value, shown in (("kind", None, 1), ("tables", None, 1), ("kind", "activation", 0), ("nobody", 3, 0)):
        config = {**record["config"], "dropout": dict(record["config"]["dropout"])}
        config["dropout"].pop(name, None)
        config["dropout"] |= {} if value is None else {name: value}
        path.write_text(json.dumps({**record, "config": config}))
        assert len(Records(results).runs("ptb", "512-paper")) == shown, (name, value)


def test_a_perplexity_that_json_cannot_say_is_infinite(results, keep):
    path = keep("vanilla", 65.0) / "record.json"
    record = json.loads(path.read_text())
    for result in record["results"]:
        result["perplexity"] = None
    path.write_text(json.dumps(record))
    assert cells(main_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")[2] == "inf"


def test_a_folder_must_be_named_after_its_seed(results, keep):
    keep("vanilla", 65.0).rename(results / "ptb" / "512-paper" / "vanilla-seed2")
    with pytest.raises(InputError, match="NAME-seedN"):
        main_table(Records(results), PTB, "512-paper")


def test_a_figure_of_fewer_seeds_than_its_row_says_so(results, keep):
    older = keep("vanilla", 65.0, 1) / "record.json"
    keep("vanilla", 64.0, 2)
    content = json.loads(older.read_text())
    for one in content["results"]:
        one.pop("scaled", None)
    older.write_text(json.dumps(content))
    shown = cells(main_table(Records(results), PTB, "512-paper"), "vanilla LSTM, tied")
    assert shown[-2:] == ["63.50 ±0.71", "62.75 (1 of 2)"]
