"""The table that sums up what smoothing gives."""

from __future__ import annotations

from varsmooth.reproduce.markdown import NOT_RUN
from varsmooth.reproduce.records import Records
from varsmooth.reproduce.summary import summary_table


def lines(results):
    return summary_table(Records(results)).text.splitlines()[2:]


def test_the_smoothing_row_that_is_best_on_valid_stands_beside_the_plain_model(results, keep):
    keep("vanilla", 66.0)
    assert summary_table(Records(results)) == NOT_RUN
    keep("noising-kneser-ney", 60.0)
    assert summary_table(Records(results)) == NOT_RUN, "data noising is no smoothing"
    keep("smoothing-kneser-ney", 67.0)
    keep("element-kneser-ney", 65.5)
    keep("vanilla", 64.0, group="512-tuned")
    keep("element-kneser-ney", 64.25, group="512-tuned")
    keep("element-kneser-ney", 63.25, group="1024-paper")  # without a plain model
    assert lines(results) == [
        "| Penn Treebank, 512 units, the paper's setting | element-wise smoothing, Kneser-Ney | 65.00 | 64.50 | 0.50 better |",
        "| Penn Treebank, 512 units, tuned | element-wise smoothing, Kneser-Ney | 63.00 | 63.25 | 0.25 worse |",
    ]


def test_of_a_share_of_the_text_each_arm_has_its_best_prediction_and_its_final_runs(results, keep):
    for name, row, test in (("vanilla", "vanilla", 160.0), ("word", "smoothing-kneser-ney", 151.0)):
        for trial in range(1, 9):
            keep(row, test + trial, 11, corpus="wikitext-2", group="data-size", name=f"{name}-0.05-v{trial}")
        for seed in (1, 2):
            final = f"{name}-0.05-v1-final"
            keep(row, test + seed, seed, corpus="wikitext-2", group="data-size", name=final)
    assert lines(results) == [
        "| 5% of WikiText-2, 512 units, tuned | word smoothing, Kneser-Ney | 160.50 ±0.71 | 151.50 ±0.71 | 9.00 ±0.71 better |"
    ], "at the tuned temperature; of all of the text the tuned table tells"
