from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from varsmooth import InputError
from varsmooth.bench import run_bench
from varsmooth.bench.findings import Check
from varsmooth.bench.learning import Effort
from varsmooth.bench.plan import PENN
from varsmooth.bench.targets import STEP
from varsmooth.bench.workload import VANILLA, WORD, Workload
from varsmooth.config import override
from varsmooth.fleet.clock import Clock
from varsmooth.recipe import load_recipe
from varsmooth.report.runs import load_run
from varsmooth.report.tables import Spread
from varsmooth.reproduce.chosen import Choice, Chosen
from varsmooth.reproduce.cost import Cost, cost_curves, cost_plans, cost_table, measure_cost, read_cost
from varsmooth.reproduce.experiment_tables import choices_table, curves, experiment_table, final_jobs
from varsmooth.reproduce.experiments import experiment_jobs, named_experiments
from varsmooth.reproduce.pace import milliseconds, scheme_of
from varsmooth.reproduce.page import build_page
from varsmooth.reproduce.pictures import line_chart
from varsmooth.reproduce.records import Records
from varsmooth.reproduce.shares import data_for, first_lines
from varsmooth.train.environment import environment

PNG = b"\x89PNG\r\n\x1a\n"
SHORT = Effort(steps=2, every=2, tokens=2_000, held_out=200)
GAMMA, ABLATION, DATA_SIZE, TUNING = (named_experiments()[name] for name in ("gamma", "ablation", "data-size", "tuning-1024"))


def test_the_gamma_figure_shows_what_was_run(results, keep):
    for gamma, test in ((0.05, 67.0), (0.1, 66.0), (0.6, 80.0)):
        keep("smoothing-kneser-ney", test, group="gamma", name=f"word-{gamma}")
    found = experiment_table(GAMMA, Records(results), "ptb")
    assert "| word smoothing, Kneser-Ney | 71.00 | 70.00 | - | - | - | - | 84.00 |" in found, "the development set's"
    assert "| element-wise smoothing, Kneser-Ney | - | - | - | - | - | - | - |" in found
    absent = "element-wise smoothing, Kneser-Ney at 0.05; element-wise smoothing, Kneser-Ney at 0.1; 0.2; 0.3; 0.4; 0.5; "
    assert f"Not run yet: {absent}element-wise smoothing, Kneser-Ney at 0.6." in found
    points = curves(GAMMA, Records(results), "ptb")["word smoothing, Kneser-Ney"]
    assert [(value, height.mean) for value, height in points] == [(0.05, 71.0), (0.1, 70.0), (0.6, 84.0)]
    page = build_page(results)
    assert list(page.pictures) == ["ptb-gamma.png"]
    assert page.pictures["ptb-gamma.png"]().startswith(PNG)
    assert page.parts["ptb/gamma"].startswith("![Development perplexity over gamma, Penn Treebank](ptb-gamma.png)")


def test_the_plain_model_of_the_table_stands_beside_the_gamma_curves(results, keep, monkeypatch):
    for gamma in (0.05, 0.1):
        keep("smoothing-kneser-ney", 66.0, group="gamma", name=f"word-{gamma}")
    assert "the plain model" not in build_page(results).parts["ptb/gamma"]
    keep("vanilla", 64.0, 1)
    keep("vanilla", 65.0, 2)
    drawn = {}
    monkeypatch.setattr("varsmooth.reproduce.page.line_chart", lambda found, **about: drawn.update(found=found, **about))
    page = build_page(results)
    assert "\n\nFor comparison, the plain model of the table: 68.50." in page.parts["ptb/gamma"], "on valid"
    page.pictures["ptb-gamma.png"]()
    points = drawn["found"][drawn["floor"]]
    assert [(value, height.mean) for value, height in points] == [(value, 68.5) for value in GAMMA.values]


def test_without_records_there_is_no_picture(results):
    page = build_page(results)
    assert page.pictures == {}
    for name in ("ptb/gamma", "ptb/ablation", "ptb/data-size", "wikitext-2/data-size", "cost"):
        assert page.parts[name].endswith("Not run yet.")
    assert "wikitext-2/gamma" not in page.parts


def test_quick_runs_have_a_part_of_their_own(results, keep):
    keep("smoothing-kneser-ney", 70.0, group="gamma-quick", name="word-0.1")
    page = build_page(results)
    assert page.parts["ptb/gamma"].endswith("Not run yet.")
    assert "| word smoothing, Kneser-Ney | - | 74.00 |" in page.parts["ptb/gamma-quick"]


def test_the_ablation_lists_its_arms(results, keep):
    for seed in (1, 3):
        keep("element-kneser-ney", 62.0, seed)  # in the table; the ablation's seeds are 1 and 2
    keep("element-kneser-ney", 63.0, 2, group="ablation", name="element-plain")
    found = experiment_table(ABLATION, Records(results), "ptb")
    assert "| element-wise smoothing, Kneser-Ney, as it is | 1 | 66.00 | 62.00 | 61.00 |" in found
    assert "| plain L2 in place of the data-dependent one | 2 | 67.00 | 63.00 | 62.00 |" in found
    assert "| the mode in place of the mean | 1 | 66.50 | 62.50 | 61.50 |" in found, "of the same run"
    assert "Not run yet: a fresh draw at every position" in found


def test_arms_with_variants_have_a_line_for_each(results, keep):
    beside = named_experiments()["beside-dropout"]
    assert experiment_table(beside, Records(results), "ptb").endswith("\n\nNot run yet.")
    keep("vanilla", 63.0, 1, group="beside-dropout", name="vanilla-v2")
    found = experiment_table(beside, Records(results), "ptb")
    assert "| vanilla, dropout of activations, `dropout.tables=0.5` | 1 | 67.00 | 63.00 | 62.00 |" in found
    assert "| vanilla, dropout of activations, `dropout.tables=0.6` | - |" in found
    assert found.count("| - | - | - | - |") == sum(len(arm.variants) for arm in beside.arms) - 1
    assert found.count("element-wise smoothing of the input") == 3 + 1, "what has not been run is told once"


def test_arms_that_the_table_has_are_not_trained_again_and_arms_can_be_chosen():
    jobs = experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}))
    assert len(jobs) == 2 * sum(not arm.table for arm in ABLATION.arms) > 0
    assert not {"element-seed1", "vanilla-seed1", "word-mode-seed1"} & {job.name for job in jobs}
    some = experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), seeds=[1], arms=["vanilla-update"])
    assert [(job.name, job.config.dropout.recurrent_kind) for job in some] == [("vanilla-update-seed1", "update")]
    with pytest.raises(InputError, match="'vanila' is no arm of ablation; did you mean 'vanilla'"):
        experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), arms=["vanila"])


def test_points_of_a_curve_can_be_chosen():
    nothing = Chosen("chosen.toml", {})
    some = experiment_jobs(GAMMA, "ptb", nothing, points=[0.1, 0.6], arms=["word"])
    assert [job.name for job in some] == ["word-0.1-seed1", "word-0.6-seed1"]
    shares = experiment_jobs(DATA_SIZE, "wikitext-2", nothing, points=[0.25])
    assert {(job.share, job.config.train.steps) for job in shares} == {(0.25, 9000)}
    with pytest.raises(InputError, match=r"--points: 0\.15 is no point of gamma; points: 0\.05, 0\.1, 0\.2"):
        experiment_jobs(GAMMA, "ptb", nothing, points=[0.15])
    with pytest.raises(InputError, match="--points: 1 is no point of ablation, which has none"):
        experiment_jobs(ABLATION, "ptb", nothing, points=[1.0])


def test_an_arm_that_would_train_nothing_is_refused():
    with pytest.raises(InputError, match="--rows: word-mode is a row of the table"):
        experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), arms=["word-mode"])
    chosen = Chosen("chosen.toml", {("tuned", 512, "vanilla"): Choice({})})
    with pytest.raises(InputError, match="--rows: element-kneser-ney has not been tuned yet"):
        experiment_jobs(TUNING, "ptb", chosen, arms=["element-kneser-ney"])


def test_a_quick_budget_makes_no_run_longer_and_leaves_lengths_alone():
    nothing = Chosen("chosen.toml", {})
    steps = {job.share: job.config.train.steps for job in experiment_jobs(DATA_SIZE, "ptb", nothing, budget="quick")}
    assert steps == {0.05: 1500, 0.1: 3500, 0.25: 6000, 0.5: 6000, 1.0: 6000}
    with pytest.raises(InputError, match="--budget quick does not go with --experiment length"):
        experiment_jobs(named_experiments()["length"], "ptb", nothing, budget="quick")


def test_a_variant_that_diverged_is_not_waited_for(results, keep):
    experiment = named_experiments()["data-size-zero"]
    for number in (1, 2, 3):
        keep("vanilla", 90.0 - number, group=experiment.name, name=f"vanilla-0.05-v{number}", corpus="wikitext-2")
    assert "| vanilla | - |" in experiment_table(experiment, Records(results), "wikitext-2")
    about = {"status": "failed", "stopped_because": "not finite"}
    keep("vanilla", 90.0, group=experiment.name, name="vanilla-0.05-v4", corpus="wikitext-2", **about)
    assert "| vanilla | 86.00 |" in experiment_table(experiment, Records(results), "wikitext-2")


def test_every_arm_of_the_ablation_changes_what_it_says():
    jobs = {job.name: job.config for job in experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), seeds=[1])}
    rarely = ["train.eval_every=3000"]
    element, vanilla = (override(load_recipe(f"{row}/ptb-512"), rarely) for row in ("element-kneser-ney", "vanilla"))
    assert (element.smoothing.kl, element.smoothing.scope, element.smoothing.tie) == ("exact", "sequence", "independent")
    assert jobs["element-plain-seed1"] == override(element, ["smoothing.kl=plain"])
    assert jobs["element-shared-seed1"] == override(element, ["smoothing.scope=batch", "smoothing.tie=shared-draw"])
    assert jobs["element-batch-seed1"] == override(element, ["smoothing.scope=batch"])
    for arm, row in (("element", element), ("vanilla", vanilla)):
        assert jobs[f"{arm}-position-seed1"] == override(row, ["smoothing.scope=position"])
        assert jobs[f"{arm}-unigram-seed1"] == override(row, ["model.bias=unigram"])
    assert jobs["vanilla-update-seed1"] == override(vanilla, ["dropout.recurrent_kind=update"])


def test_a_run_alone_shows_its_time(results, keep):
    experiment = named_experiments()["alone"]
    assert "Not run yet" in experiment_table(experiment, Records(results), "ptb")
    about = {"seconds": 90.0, "ms_per_step": 0.7, "steps": 54000, "hardware": {"name": "a card"}}
    keep("vanilla", 65.0, group="alone", name="vanilla", **about)
    found = experiment_table(experiment, Records(results), "ptb")
    assert "| vanilla LSTM, tied, 512 units | a card | 54,000 | 0.70 | 1.50 | 65.00 |" in found


def test_a_larger_model_is_tuned_over_what_the_smaller_one_chose(results, keep):
    chosen = Chosen("chosen.toml", {("tuned", 512, "vanilla"): Choice({"train.l2": 0.002, "dropout.tables": 0.55})})
    jobs = experiment_jobs(TUNING, "ptb", chosen)
    assert [job.name for job in jobs] == [f"vanilla-v{number}-seed11" for number in (1, 2, 3)]
    assert [job.config.dropout.tables for job in jobs] == [0.65, 0.7, 0.75]
    assert {(job.config.train.l2, job.config.model.hidden, job.config.evaluate.final) for job in jobs} == {(0.002, 1024, False)}
    with pytest.raises(InputError, match=r"has no \[tuned.512.ROW\]"):
        experiment_jobs(TUNING, "ptb", Chosen("chosen.toml", {}))
    keep("vanilla", 0.0, group="tuning-1024", name="vanilla-v2", best={"valid_perplexity": 61.5, "step": 9})
    assert "| vanilla LSTM, tied | `dropout.tables=0.7` | 61.50 |" in experiment_table(TUNING, Records(results), "ptb")


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
    header, _, *rows = choices_table(small, Records(results), "wikitext-2").splitlines()
    assert header.endswith("| its valid, tuned temperature |")
    assert rows == ["| 0.05 | vanilla | `dropout.tables=0.6`, `train.l2=0.001` | 2 | 83.00 |"]


def test_the_data_size_curve_is_of_final_runs_and_shows_what_was_chosen(results, keep):
    for row, arm in (("vanilla", "vanilla"), ("element-kneser-ney", "element")):
        keep_trials(keep, row, arm, 0.05, VALID)
    assert "Not run yet." in experiment_table(DATA_SIZE, Records(results), "wikitext-2")
    keep_finals(keep, "vanilla", "vanilla", 0.05, 6, (88.0, 90.0))
    keep_finals(keep, "element-kneser-ney", "element", 0.05, 6, (84.0, 85.0))
    keep_finals(keep, "element-kneser-ney", "element", 0.05, 5, (70.0, 70.0))
    found = experiment_table(DATA_SIZE, Records(results), "wikitext-2")
    assert "| vanilla | 88.00 ±1.41 | - | - | - | - |" in found, "at its tuned temperature"
    assert "| element-wise smoothing, Kneser-Ney | 83.50 ±0.71 | - | - | - | - |" in found, "by the trials, not by its figure"
    assert "| gain of element-wise smoothing, Kneser-Ney | 4.50 ±1.12 | - | - | - | - |" in found, "± the standard error"
    assert "| word smoothing, Kneser-Ney | - | - | - | - | - |" in found
    assert "| vanilla, tuned scales | 87.75 ±1.41 | - | - | - | - |" in found
    parts = build_page(results).parts
    cost = parts["wikitext-2/data-size/cost"]
    assert cost.splitlines()[2].startswith("| 0.05 | "), cost
    assert len(cost.splitlines()) == 3
    _, _, *chosen = parts["wikitext-2/data-size/chosen"].splitlines()
    assert chosen == [
        "| 0.05 | vanilla | `dropout.tables=0.8` | 8 | 91.00 |",
        "| 0.05 | element-wise smoothing, Kneser-Ney | `dropout.tables=0.8`, `smoothing.gamma=0.3` | 8 | 91.00 |",
    ]


def test_arms_of_the_data_size_curve_predict_as_their_rows_do_when_tuned_beside_one_kind_of_dropout():
    jobs = experiment_jobs(DATA_SIZE, "wikitext-2", Chosen("chosen.toml", {}))
    found = {job.name.partition("-")[0]: job.config.smoothing.predict for job in jobs}
    assert found == {"vanilla": "mode", "word": "mode", "element": "mean", "noising": "mode"}
    assert {job.config.dropout.kind for job in jobs} == {"activation"}, "for the plain model too"
    assert {(job.share, job.config.model.bias) for job in jobs} == {
        *((share, "unigram") for share in (0.05, 0.1, 0.25)),
        *((share, "zero") for share in (0.5, 1.0)),
    }
    plain = [(job.share, job.config.dropout.tables) for job in jobs if job.name.startswith("vanilla")]
    assert plain[-8:] == [*((0.5, rate) for rate in (0.55, 0.6, 0.65, 0.7)), *((1.0, rate) for rate in (0.5, 0.55, 0.6, 0.65))]
    assert {job.name.partition("-")[0] for job in jobs if job.config.smoothing.scope == "position"} == {"element"}


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


def test_cost_is_measured_once_and_shown_with_its_floor(results):
    loads = [Workload(size, 211, batch=4, window=5, precision="fp32", tokens=4_000) for size in (8, 16)]
    told: list[str] = []
    plans = cost_plans(torch.device("cpu"), loads)
    plans = [replace(plan, calls=1, repeats=2, warm_up=1, gate_steps=2, gate=plan.workloads, learning=SHORT) for plan in plans]
    assert len(measure_cost(results, plans, lambda name, *_: told.append(name))) == 2
    assert measure_cost(results, plans, lambda *_: None) == []
    (results / "cost.csv").unlink()
    again = measure_cost(results, [plans[0], replace(plans[0], workloads=loads[1:])], lambda *_: None)
    assert [bool(found.checks) for found in again] == [True, True]
    (results / "cost.csv").unlink()
    wider = replace(loads[0], words=212)
    again = measure_cost(results, [plans[0], replace(plans[0], workloads=(wider,))], lambda *_: None)
    assert [bool(found.checks) for found in again] == [True, False], "one check for each size"
    (results / "cost.csv").unlink()
    measure_cost(results, plans, lambda *_: None)
    found = cost_table(results)
    told, _, *lines = found.splitlines()
    assert len(lines) == 4, "memory is that of a GPU, and in two steps nothing is learned"
    assert lines[2].startswith("| 8 | 211 | ")
    name = environment(torch.device("cpu"))["hardware"]["name"]
    assert told == f"A training step on one {name}, ms:"
    other = (results / "cost.csv").read_text().replace(name, "a card")
    (results / "cost.csv").write_text(other)
    assert len(measure_cost(results, plans, lambda *_: None)) == 2, "what was measured elsewhere says nothing of this machine"


def test_cost_curves_lie_over_one_thing_at_a_time(results):
    results.mkdir()
    header = "quantity,size,vocabulary,scheme,median,floor,device\n"
    rows = ["step,512,10000,vanilla,0.7,0.3", "step,512,33278,vanilla,1.2,0.6", "step,1024,10000,vanilla,1.5,0.7"]
    rows += ["step,512,10000,word KN,0.8,0.3", "peak memory,512,10000,vanilla,280,"]
    rows += ["peak memory,512,10000,element KN batch,290,"]
    rows += ["steps to a perplexity,512,10000,vanilla,1500,", "steps to a perplexity,512,10000,element KN batch,900,"]
    rows = [
        "step,512,10000,vanilla,90,,a processor",
        "step,512,10000,vanilla,0.9,0.3,a card",
        *(f"{row},a card" for row in rows),
    ]
    (results / "cost.csv").write_text(header + "\n".join(rows) + "\n")
    over_words = cost_curves(results, "words")
    assert [(place, height.mean) for place, height in over_words["vanilla"]] == [(PENN, 0.7), (33_278, 1.2)]
    assert [(place, height.mean) for place, height in over_words["counted floor"]] == [(PENN, 0.3), (33_278, 0.6)]
    assert list(over_words)[-1] == "counted floor"
    assert [place for place, _ in cost_curves(results, "size")["vanilla"]] == [512, 1024]
    page = build_page(results)
    assert set(page.pictures) == {"cost-words.png", "cost-size.png"}
    assert page.pictures["cost-words.png"]().startswith(PNG)
    assert "| 512 | 10,000 | 0.70 | 0.80 | - | - | 0.30 |\n" in page.parts["cost"]
    assert "| 512 | 10,000 | 280 | - | 290 | - |" in page.parts["cost"]
    title, table = page.parts["cost"].split("\n\n")[-2:]
    assert title == "Steps, and their time, to 3 times the best possible perplexity of made-up text:"
    assert table.splitlines()[2:] == ["| 512 | 10,000 | 1,500 (1.1 s) | - | - | - |"], "of what has a step that was timed"
    (results / "cost.csv").write_text("quantity\nstep\n")
    with pytest.raises(InputError, match=r"cost\.csv: not the rows of a bench"):
        cost_table(results)


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


@pytest.fixture
def tiny_costs(monkeypatch):
    """A machine that has a GPU, as far as the command can tell, and two small shapes to measure."""
    loads = [Workload(size, 211, batch=4, window=5, precision="fp32", tokens=4_000) for size in (8, 16)]
    plans = [
        replace(plan, calls=1, repeats=2, warm_up=1, gate_steps=2, gate=plan.workloads, learning=SHORT)
        for plan in cost_plans(torch.device("cpu"), loads)
    ]
    monkeypatch.setattr("varsmooth.cli.reproducing.cost_plans", lambda _: plans)
    monkeypatch.setattr("varsmooth.cli.reproducing.resolve_device", lambda _: torch.device("cuda"))


def test_cost_stops_when_the_time_is_up_and_the_same_command_goes_on(run, results, tmp_path, tiny_costs, monkeypatch):
    command = ["reproduce", "ptb", "--experiment", "cost", "--results", results, "--out", tmp_path / "out"]
    names = ["cost of 8 units with 211 words", "cost of 16 units with 211 words"]
    assert json.loads(run(*command, "--dry-run", "--json")[1]) == {"planned": 2, "missing": names, "steps": 0}
    times = iter([0.0, 30.0, 61.0])
    monkeypatch.setattr("varsmooth.reproduce.cost.Clock", lambda limit: Clock(limit, lambda: next(times)))
    status, _, told = run(*command, "--minutes", 1)
    assert (status, "the time is up, 1 runs are left; the same command goes on" in told) == (0, True), told
    assert run(*command, "--dry-run")[1].splitlines() == names[1:]


def test_cost_needs_a_gpu_and_takes_no_rows(run, results, tmp_path):
    command = ["reproduce", "ptb", "--experiment", "cost", "--results", results, "--out", tmp_path / "out"]
    if not torch.cuda.is_available():
        status, _, told = run(*command)
        assert (status, "--experiment cost needs a GPU" in told) == (2, True)
    for flags, flag in ((["--rows", "vanilla"], "rows"), (["--seeds", "1"], "seeds"), (["--budget", "quick"], "budget")):
        status, _, told = run(*command, *flags)
        assert (status, f"--experiment cost does not go with --{flag}" in told) == (2, True)


def test_what_is_measured_of_cost():
    plans = cost_plans(torch.device("cuda"))
    shapes = [(load.size, load.words) for plan in plans for load in plan.workloads]
    over_words = {(512, words) for words in (10_000, 33_278, 100_000, 267_735)}
    assert {*over_words, (1024, 10_000), (1024, 33_278), (2048, 10_000)} == set(shapes)
    assert len(shapes) == 7
    assert all(plan.memory_of == plan.schemes for plan in plans)
    assert all(plan.groups == ("schemes", "memory", "learning") for plan in plans)


def test_the_time_to_a_perplexity_is_that_of_its_steps_on_a_card_that_has_nothing_else(results, keep):
    keep("vanilla", 70.0)  # valid 74, at step 10
    keep("element-kneser-ney", 90.0)
    assert "| Penn Treebank | 512 | 1,000 | 80.0 | 10 | - | - (0 of 1 reach it) |" in build_page(results).parts["cost/time"]
    header = "quantity,size,vocabulary,scheme,median,floor,device\n"
    (results / "cost.csv").write_text(header + "step,512,900,vanilla,100,,a card\nstep,512,1100,vanilla,300,,a card\n")
    assert "| 512 | 1,000 | 80.0 | 10 (2.0 s) | - |" in build_page(results).parts["cost/time"], "half way between two"
    (results / "cost.csv").write_text(header + "step,512,1100,vanilla,300,,a card\nstep,1024,1000,vanilla,300,,a card\n")
    assert "| 512 | 1,000 | 80.0 | 10 | - |" in build_page(results).parts["cost/time"], "not measured at this size"


@pytest.mark.parametrize(
    ("row", "scheme"),
    [
        ("vanilla", "vanilla"),
        ("smoothing-kneser-ney", "word KN"),
        ("element-kneser-ney", "element KN sequence"),
        ("noising-kneser-ney", None),
        ("smoothing-blank", None),
    ],
)
def test_the_scheme_of_the_bench_that_a_run_is(keep, row, scheme):
    run = load_run(keep(row, 70.0))
    assert scheme_of(run) == scheme


@pytest.mark.parametrize(("words", "expected"), [(400, None), (500, 1.0), (1000, 1.5), (1500, 2.0), (1700, 2.6), (2001, None)])
def test_a_step_is_guessed_between_vocabularies_that_were_measured_and_not_beyond(keep, words, expected):
    run = load_run(keep("vanilla", 70.0, data={"vocab_size": words}))
    costs = [Cost(STEP, 512, place, VANILLA, time, None, "a card") for place, time in ((500, 1.0), (1500, 2.0), (2000, 3.5))]
    others = [Cost(STEP, 1024, 500, VANILLA, 9.0, None, "a card"), Cost(STEP, 512, 500, WORD, 8.0, None, "a card")]
    assert milliseconds([*others, *costs], run) == (None if expected is None else pytest.approx(expected))


def test_cost_is_drawn_on_two_logarithmic_axes(monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_yscale", lambda _, kind: drawn.append(kind))
    two = {"vanilla": [(512.0, Spread(0.7, None, 1)), (1024.0, Spread(2.0, None, 1))]}
    for up in (False, True):
        line_chart(two, title="cost", across="units", up="ms/step", logarithmic_up=up)
    assert drawn == ["log"]


def test_what_fails_does_not_keep_the_rest_from_being_measured(results, monkeypatch):
    loads = [Workload(size, 211, batch=4, window=5, precision="fp32", tokens=4_000) for size in (8, 16, 24)]
    plans = cost_plans(torch.device("cpu"), loads)
    plans = [replace(plan, calls=1, repeats=2, warm_up=1, gate=(), learning=SHORT) for plan in plans]

    def bench(plan, observe):
        if plan.workloads[0].size == 8:
            raise InputError("out of GPU memory")
        found = run_bench(plan, observe)
        wrong = [Check("kernels are references", "16 units", 1.0, 0.1)] if plan.workloads[0].size == 16 else []
        return replace(found, checks=wrong)

    monkeypatch.setattr("varsmooth.reproduce.cost.run_bench", bench)
    with pytest.raises(InputError, match="cost of 8 units with 211 words: out of GPU memory"):
        measure_cost(results, plans, lambda *_: None)
    assert {cost.size for cost in read_cost(results)} == {24}
    with pytest.raises(InputError, match="cost of 16 units with 211 words: nothing is timed while results are wrong"):
        measure_cost(results, plans[1:], lambda *_: None)
