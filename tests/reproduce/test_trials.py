from __future__ import annotations

import json
from dataclasses import replace

import pytest

from varsmooth import InputError
from varsmooth.config import override
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.experiment_tables import choices_table, experiment_table
from varsmooth.reproduce.experiments import experiment_jobs, named_experiments
from varsmooth.reproduce.page import build_page
from varsmooth.reproduce.records import Records, best_prediction
from varsmooth.reproduce.shares import data_for, first_lines
from varsmooth.reproduce.trials import final_jobs

PNG = b"\x89PNG\r\n\x1a\n"
GAMMA, DATA_SIZE = (named_experiments()[name] for name in ("gamma", "data-size"))


def keep_trials(keep, row, arm, value, valid):
    for number, perplexity in enumerate(valid, start=1):
        best = {"valid_perplexity": perplexity, "step": 9}
        keep(row, 0.0, group="data-size", name=f"{arm}-{value}-v{number}", seed=11, results=[], best=best, corpus="wikitext-2")


def keep_finals(keep, row, arm, value, variant, tests):
    for seed, test in enumerate(tests, start=1):
        keep(row, test, group="data-size", name=f"{arm}-{value}-v{variant}-final", seed=seed, corpus="wikitext-2")


VALID = (95.0, 94.0, 93.0, 92.5, 92.0, 91.0, 91.5, 93.0)
"""Of eight trials, of which the sixth is the best."""


def test_final_runs_follow_the_trials_of_a_point_once_all_have_ended(results, keep):
    nothing = Chosen("chosen.toml", {})
    trials = experiment_jobs(DATA_SIZE, "wikitext-2", nothing)
    assert {(job.config.train.seed, job.config.evaluate.final) for job in trials} == {(11, False)}
    keep_trials(keep, "vanilla", "vanilla", 0.05, VALID)
    keep_trials(keep, "element-kneser-ney", "element", 0.05, VALID[:7])
    found = final_jobs(DATA_SIZE, "wikitext-2", nothing, results)
    assert [job.name for job in found] == [f"vanilla-0.05-v6-final-seed{seed}" for seed in (1, 2, 3)]
    trial = next(job.config for job in trials if job.name == "vanilla-0.05-v6-seed11")
    assert found[1].config == override(trial, ["train.seed=2", "evaluate.final=true"])
    some = final_jobs(DATA_SIZE, "wikitext-2", nothing, results, seeds=[7], arms=["vanilla"])
    assert [job.name for job in some] == ["vanilla-0.05-v6-final-seed7"]
    assert final_jobs(DATA_SIZE, "wikitext-2", nothing, results, arms=["element"]) == []
    assert final_jobs(GAMMA, "ptb", nothing, results) == []


def test_a_trial_that_diverged_does_not_keep_the_final_runs_waiting(results, keep):
    keep_trials(keep, "vanilla", "vanilla", 0.05, VALID[:7])
    nothing = Chosen("chosen.toml", {})
    assert final_jobs(DATA_SIZE, "wikitext-2", nothing, results) == []
    about = {"status": "failed", "stopped_because": "not finite", "results": []}
    keep("vanilla", 0.0, 11, group="data-size", name="vanilla-0.05-v8", corpus="wikitext-2", **about)
    assert {job.name for job in final_jobs(DATA_SIZE, "wikitext-2", nothing, results, seeds=[1])} == {
        "vanilla-0.05-v6-final-seed1"
    }


def test_what_was_chosen_without_final_runs_is_told_at_the_tuned_temperature(results, keep):
    experiment = named_experiments()["data-size-zero"]
    uneven = ({"dropout.tables": 0.5}, {"dropout.tables": 0.6, "train.l2": 0.001})
    small = replace(experiment, arms=(replace(experiment.arms[0], variants=uneven),), values=(0.05,))
    for number, test in ((1, 90.0), (2, 80.0)):
        keep("vanilla", test, group=experiment.name, name=f"vanilla-0.05-v{number}", corpus="wikitext-2")
    header, _, *rows = choices_table(small, Records(results), "wikitext-2").text.splitlines()
    assert header.endswith("| its valid, tuned temperature | best prediction on valid |")
    assert rows == ["| 0.05 | vanilla | `dropout.tables=0.6`, `train.l2=0.001` | 2 | 83.00 | mode |"]


def test_the_data_size_curve_is_of_final_runs_and_shows_what_was_chosen(results, keep):
    for row, arm in (("vanilla", "vanilla"), ("element-kneser-ney", "element")):
        keep_trials(keep, row, arm, 0.05, VALID)
    assert "Not run yet." in experiment_table(DATA_SIZE, Records(results), "wikitext-2").text
    keep_finals(keep, "vanilla", "vanilla", 0.05, 6, (88.0, 90.0))
    keep_finals(keep, "element-kneser-ney", "element", 0.05, 6, (84.0, 85.0))
    keep_finals(keep, "element-kneser-ney", "element", 0.05, 5, (70.0, 70.0))
    found = experiment_table(DATA_SIZE, Records(results), "wikitext-2").text
    assert "| vanilla | 88.00 ±1.41 | - | - | - | - |" in found, "at its tuned temperature"
    assert "| element-wise smoothing, Kneser-Ney | 83.50 ±0.71 | - | - | - | - |" in found, "by the trials, not by its figure"
    gains, _ = found.split("\n\n| share of the training text |")
    assert gains.startswith("| below vanilla, by share of the training text | 0.05 | 0.1 | 0.25 | 0.5 | 1 |\n")
    assert "| element-wise smoothing, Kneser-Ney | 4.50 ±1.12 | - | - | - | - |" in gains, "± the standard error"
    assert "| element-wise smoothing, Kneser-Ney, tuned scales | 4.50 ±1.12 | - | - | - | - |" in gains
    assert "| word smoothing, Kneser-Ney | - | - | - | - | - |" in found
    assert "| vanilla, tuned scales | 87.75 ±1.41 | - | - | - | - |" in found
    parts = build_page(results).parts
    cost = parts["wikitext-2/data-size/cost"]
    assert cost.splitlines()[2].startswith("| 0.05 | "), cost
    assert len(cost.splitlines()) == 3
    _, _, *chosen = parts["wikitext-2/data-size/chosen"].splitlines()
    assert chosen == [
        "| 0.05 | vanilla | `dropout.tables=0.8` | 8 | 91.00 | mode |",
        "| 0.05 | element-wise smoothing, Kneser-Ney | `dropout.tables=0.8`, `smoothing.gamma=0.3` | 8 | 91.00 | mean |",
    ]


def test_small_data_is_shown_by_the_prediction_that_is_best_on_valid(results, keep):
    keep_trials(keep, "smoothing-kneser-ney", "word", 0.05, VALID)
    for seed, (mean, other) in enumerate([(80.0, 90.0), (82.0, 70.0)], start=1):
        about = {"group": "data-size", "name": "word-0.05-v6-final", "seed": seed, "corpus": "wikitext-2"}
        folder = keep("smoothing-kneser-ney", other, **about)
        path = folder / "record.json"
        content = json.loads(path.read_text())
        by_mode = [entry for entry in content["results"] if entry["tuned_temperature"]]
        for entry, figure in zip(by_mode, (mean - 10, mean + 1), strict=True):  # valid, test
            scaled = {**entry["scaled"], "perplexity": figure - 0.25}
            content["results"].append({**entry, "predict": "mean", "perplexity": figure, "scaled": scaled})
        path.write_text(json.dumps(content))
    found = experiment_table(DATA_SIZE, Records(results), "wikitext-2").text
    assert "| word smoothing, Kneser-Ney | 82.00 ±1.41 | - | - | - | - |" in found, "not the mode, better on test alone"
    assert "| word smoothing, Kneser-Ney, tuned scales | 81.75 ±1.41 | - | - | - | - |" in found
    assert choices_table(DATA_SIZE, Records(results), "wikitext-2").text.endswith("| mean |")
    for path in results.glob("wikitext-2/data-size/word-0.05-v6-final-*/record.json"):
        content = json.loads(path.read_text())
        for entry in content["results"]:
            if entry["predict"] == "mode" and "scaled" in entry:
                entry["scaled"]["perplexity"] = {"valid": 60.0, "test": 85.0}[entry["split"]]
        path.write_text(json.dumps(content))
    found = experiment_table(DATA_SIZE, Records(results), "wikitext-2").text
    assert "| word smoothing, Kneser-Ney | 82.00 ±1.41 | - | - | - | - |" in found, "as before"
    assert "| word smoothing, Kneser-Ney, tuned scales | 85.00 ±0.00 | - | - | - | - |" in found, (
        "with scales, the mode is best"
    )


def test_a_prediction_that_a_seed_lacks_is_not_the_best(results, keep):
    for seed in (1, 2):
        keep("element-kneser-ney", 60.0, seed)
    runs = Records(results).runs("ptb", "512-paper")["element-kneser-ney"]
    assert best_prediction(runs) == "mean"
    runs[0].record["results"] = [it for it in runs[0].record["results"] if it["predict"] == "mode"]
    assert best_prediction(runs) == "mode"
    assert best_prediction([]) is None


def test_arms_of_the_data_size_curve_predict_as_their_rows_do_when_tuned_beside_one_kind_of_dropout():
    jobs = experiment_jobs(DATA_SIZE, "wikitext-2", Chosen("chosen.toml", {}))
    found = {(job.name.partition("-")[0], job.config.smoothing.predict) for job in jobs}
    assert found == {("vanilla", "mode"), ("word", "mode"), ("word", "mean"), ("element", "mean"), ("noising", "mode")}
    assert {job.share for job in jobs if job.config.smoothing.predict == "mode" and "word" in job.name} == {0.05, 0.1}
    assert {job.config.dropout.kind for job in jobs} == {"activation"}, "for the plain model too"
    assert {(job.share, job.config.model.bias) for job in jobs} == {
        *((share, "unigram") for share in (0.05, 0.1)),
        *((share, "zero") for share in (0.25, 0.5)),
    }
    plain = [(job.share, job.config.dropout.tables) for job in jobs if job.name.startswith("vanilla")]
    assert plain[-8:] == [*((0.25, rate) for rate in (0.6, 0.7, 0.75, 0.8)), *((0.5, rate) for rate in (0.55, 0.6, 0.65, 0.7))]
    assert {job.name.partition("-")[0] for job in jobs if job.config.smoothing.scope == "position"} == {"element"}


def test_a_trial_beyond_all_numbers_does_not_keep_the_final_runs_waiting_either(results, keep):
    keep_trials(keep, "vanilla", "vanilla", 0.05, (*VALID[:7], None))
    found = final_jobs(DATA_SIZE, "wikitext-2", Chosen("chosen.toml", {}), results, seeds=[1])
    assert [job.name for job in found] == ["vanilla-0.05-v6-final-seed1"]


def test_a_variant_of_which_a_seed_diverged_is_not_the_best(results, keep):
    keep_trials(keep, "vanilla", "vanilla", 0.05, VALID)
    about = {"status": "failed", "stopped_because": "not finite", "results": []}
    keep("vanilla", 0.0, 12, group="data-size", name="vanilla-0.05-v6", corpus="wikitext-2", **about)
    found = final_jobs(DATA_SIZE, "wikitext-2", Chosen("chosen.toml", {}), results, seeds=[1])
    assert [job.name for job in found] == ["vanilla-0.05-v7-final-seed1"]


def test_all_arms_of_a_share_come_before_the_next_share():
    names = [job.name for job in experiment_jobs(DATA_SIZE, "wikitext-2", Chosen("chosen.toml", {}))]
    arms = ("vanilla", "word", "element", "noising")
    assert names[:32] == [f"{arm}-0.05-v{number}-seed11" for arm in arms for number in range(1, 9)]
    assert names[32].startswith("vanilla-0.1-")


def test_a_share_of_the_text_is_whole_lines_and_the_other_splits_stay(tmp_path):
    text = b"a b c\nd\n\ne f\n"
    assert [first_lines(text, share) for share in (0.01, 0.4, 0.5, 0.99, 1.0)] == [
        b"a b c\n",
        b"a b c\n",
        b"a b c\nd\n",
        text,
        text,
    ]
    assert first_lines(b"\n" * 100, 0.07) == b"\n" * 7, "though 0.07 * 100 is a little more than 7"
    assert first_lines(b"a b\rc d\ne f\n", 0.1) == b"a b\rc d\n", "a line ends at a line feed alone"
    source = tmp_path / "data" / "ptb"
    source.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (source / f"{split}.txt").write_bytes(split.encode() + b" x\n" + text)
    assert data_for("ptb", 1.0, tmp_path / "fleet", tmp_path / "data") == "ptb"
    folder = tmp_path / "fleet-data" / "ptb-0.3"
    assert data_for("ptb", 0.3, tmp_path / "fleet", tmp_path / "data") == str(folder)
    assert (folder / "train.txt").read_bytes() == b"train x\na b c\n"
    assert (folder / "test.txt").read_bytes() == (source / "test.txt").read_bytes()
    with pytest.raises(InputError, match="ptb was not found"):
        data_for("ptb", 1.0, tmp_path / "fleet", tmp_path / "absent")


def test_the_picture_of_small_data_is_of_gains_because_every_share_has_its_own_vocabulary(results, keep, monkeypatch):
    for value, test in ((0.05, 90.0), (0.1, 80.0)):
        for row, arm, figure in (("vanilla", "vanilla", test), ("element-kneser-ney", "element", test - 4)):
            keep_trials(keep, row, arm, value, VALID)
            keep_finals(keep, row, arm, value, 6, [figure])
    drawn = {}

    def chart(found, **about):
        drawn.update(found=found, **about)
        return PNG

    monkeypatch.setattr("varsmooth.reproduce.page.line_chart", chart)
    page = build_page(results)
    assert page.pictures["wikitext-2-data-size.png"]() == PNG
    assert [(value, gain.mean) for value, gain in drawn["found"]["element-wise smoothing, Kneser-Ney"]] == [
        (0.05, 4.0),
        (0.1, 4.0),
    ]
    assert "vanilla" not in drawn["found"]
    assert (drawn["up"], drawn["zero"]) == ("test perplexity below vanilla", True)
    assert page.parts["figures"].startswith("![What smoothing gains over vanilla, WikiText-2]")
