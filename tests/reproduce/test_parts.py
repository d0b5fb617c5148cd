"""Several tables and experiments of a corpus as one list of runs, and what their trials choose on the way."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from commands_for_tests import refused
from varsmooth.reproduce import Parts, all_parts, corpus_plan, named_experiments
from varsmooth.reproduce.chosen import Choice, TuningTrial, read_chosen, write_chosen

PTB, WIKITEXT = corpus_plan("ptb"), corpus_plan("wikitext-2")
COMMITTED = Path(__file__).parents[2] / "results" / "reproduce"


def groups(results, choices=None, corpus="ptb", budget="full"):
    """The groups of all runs that are known, in their order."""
    if choices is not None:
        write_chosen(results / corpus / "chosen.toml", choices)
    plan = corpus_plan(corpus)
    return list(dict.fromkeys(job.group for job in Parts(plan, all_parts(plan, budget), results, {"budget": budget}).jobs()))


def test_tables_come_first_and_what_nothing_was_chosen_for_is_left_out(results):
    found = groups(results)
    of_the_paper = {name for name, it in named_experiments().items() if "ptb" in it.corpora and it.setting == "paper"}
    assert found[:2] == ["512-paper", "1024-paper"]
    # The rest of the headline's rows, which most experiments are about, have trials to come first.
    assert {"tuning-paper", "tuning-blank"} <= {*found} <= {"512-paper", "1024-paper", *of_the_paper} - {"alone"}
    assert "gamma" not in groups(results, corpus="wikitext-2")


def test_what_was_chosen_makes_tuned_tables_and_experiments_known(results):
    blank = {("tuned", 512, "smoothing-blank"): Choice({"train.lr": 0.004})}
    assert not {"512-tuned", "length"} & {*groups(results, blank)}, "it has trials to come"
    untied = {("tuned", 512, "vanilla-untied"): Choice({"train.lr": 0.004})}
    assert groups(results, untied)[:3] == ["512-paper", "512-tuned", "1024-paper"]
    both = groups(results, {**untied, ("tuned", 1024, "vanilla-untied"): Choice({})})
    assert both[:4] == ["512-paper", "512-tuned", "1024-paper", "1024-tuned"]
    quick = groups(results, {("tuned", 512, "vanilla"): Choice({})}, budget="quick")
    assert "512-tuned-quick" in quick, "whose trials choose nothing"
    assert "length-quick" not in quick, "which is about the length itself"


def names(results, *parts):
    return [job.trial_name for job in Parts(PTB, parts, results).jobs()]


def test_a_table_by_its_name_is_the_one_of_its_size_and_setting(run, results):
    write_chosen(results / "ptb" / "chosen.toml", {("tuned", 512, row): Choice({}) for row in ("vanilla", "smoothing-blank")})

    def planned(*arguments):
        return json.loads(run("reproduce", "ptb", *arguments, "--results", results, "--dry-run", "--json")[1])

    assert planned("--setting", "tuned") == planned("--experiment", "512-tuned")
    assert planned("--size", 1024) == planned("--experiment", "1024-paper")
    assert planned("--setting", "tuned", "--from-records") == planned("--setting", "tuned"), "what is missing is told of"
    some = planned("--setting", "tuned", "--rows", "vanilla", "--seeds", "4,5")
    assert some["missing"] == ["512-tuned-vanilla-seed4", "512-tuned-vanilla-seed5"]


def test_rows_of_a_tuned_table_must_have_been_tuned(run, results):
    refused(run("reproduce", "ptb", "--setting", "tuned", "--results", results), "[tuned.512.ROW]")
    refused(run("reproduce", "ptb", "--setting", "tuned", "--rows", "vanilla", "--results", results), "[tuned.512.vanilla]")
    results.mkdir()
    tuned = ("reproduce", "ptb", "--setting", "tuned", "--from-records", "--dry-run", "--results", results)
    assert run(*tuned)[0] == 0, "records can be shown without knowing what was chosen"
    refused(run(*tuned, "--rows", "vanilla"), "[tuned.512.vanilla]")
    refused(run(*tuned, "--size", 256), "--size must be one of 512, 1024")


def waiting(results, *parts, plan=PTB):
    return [job.trial_name for job in Parts(plan, parts, results).waiting()]


def test_final_runs_of_points_without_a_best_variant_wait(results, keep):
    small = waiting(results, "data-size", plan=WIKITEXT)
    points, arms, seeds = 4, 4, 3
    assert len(small) == len(set(small)) == points * arms * seeds
    for number in range(1, 9):
        keep("vanilla", 160.0, 11, group="data-size", name=f"vanilla-0.05-v{number}", corpus="wikitext-2")
    assert len(waiting(results, "data-size", plan=WIKITEXT)) == len(small) - seeds


def test_what_trials_in_the_same_list_will_choose_is_waited_for(results):
    choices = {("tuned", 512, row): Choice({}) for row in ("vanilla", "vanilla-untied")}
    write_chosen(results / "ptb" / "chosen.toml", choices)
    rows = {name.removeprefix("512-tuned-")[: -len("-seed1")] for name in names(results, "512-tuned")}
    assert rows == {"vanilla", "vanilla-untied"}, "with nothing to wait for"
    together = names(results, "512-tuned", "length", "tuning-rate")
    assert [name for name in together if not name.startswith("tuning-rate")] == [
        f"512-tuned-vanilla-untied-seed{seed}" for seed in (1, 2, 3)
    ], "also of what is longer by length alone"
    assert len([name for name in together if name.startswith("tuning-rate-vanilla")]) == 4, "trials do not wait for themselves"
    write_chosen(results / "ptb" / "chosen.toml", {**choices, ("tuned", 1024, "vanilla"): Choice({})})
    larger = names(results, "tuning-rate", "1024-tuned", "1024-paper")
    assert not any(name.startswith("1024-tuned-vanilla-") for name in larger), "which takes over what the smaller model chose"
    assert any(name.startswith("1024-paper-vanilla-") for name in larger), "which is of the other setting"
    assert "1024-tuned-vanilla-seed1" in waiting(results, "tuning-rate", "1024-tuned")
    own = Choice({}, (TuningTrial({}, 54_000, 60.0),))
    write_chosen(results / "ptb" / "chosen.toml", {**choices, ("tuned", 1024, "vanilla"): own})
    assert "1024-tuned-vanilla-seed1" in names(results, "tuning-rate", "1024-tuned"), "with its own trials"
    both_sizes = names(results, "tuning-rate", "tuning-1024")
    assert len([name for name in both_sizes if name.startswith("tuning-1024-vanilla-")]) == 3, "trials build on no choice"


def test_a_larger_model_without_trials_waits_for_those_of_the_smaller(run, results):
    larger, path = {("tuned", 1024, "vanilla"): Choice({"dropout.recurrent": 0.3})}, results / "wikitext-2" / "chosen.toml"
    write_chosen(path, larger)
    parts = Parts(WIKITEXT, ["tuning-kind", "1024-tuned"], results)
    parts.check()
    assert {job.group for job in parts.jobs()} == {"tuning-kind"}
    assert [job.trial_name for job in parts.waiting()] == ["1024-tuned-vanilla-seed1"]
    alone = ("reproduce", "wikitext-2", "--experiment", "1024-tuned", "--results", results)
    refused(run(*alone), "has no [tuned.512.vanilla] yet, which [tuned.1024.vanilla] builds on")
    write_chosen(path, {**larger, ("tuned", 512, "vanilla"): Choice({"train.warm_up": 1000}, (TuningTrial({}, 80_000, 70.0),))})
    (job,) = Parts(WIKITEXT, ["1024-tuned"], results).jobs()
    assert (job.config.dropout.recurrent, job.config.train.warm_up, job.config.dropout.tables) == (0.3, 1000, 0.7)


def test_trials_that_have_ended_choose_once_and_for_all(results, tmp_path):
    shutil.copytree(COMMITTED / "ptb" / "tuning-wide", results / "ptb" / "tuning-wide")
    committed = read_chosen(COMMITTED / "ptb" / "chosen.toml").choices
    path = results / "ptb" / "chosen.toml"
    write_chosen(path, {key: choice for key, choice in committed.items() if key[:2] != ("tuned", 1024)})
    wide = Parts(PTB, ["tuning-wide", "tuning-1024"], results)
    assert len(wide.jobs()) == 24, "neither round waits for the other"
    found = wide.choose()
    assert {key: choice.set for key, choice in found.items()} == {
        key: choice.set for key, choice in committed.items() if key[:2] == ("tuned", 1024)
    }
    text = path.read_bytes()
    assert (wide.choose(), path.read_bytes()) == ({}, text), "nothing changes by choosing again"
    trial = next((results / "ptb" / "tuning-wide").glob("vanilla-v2-*"))
    shutil.rmtree(trial)
    write_chosen(path, {key: choice for key, choice in committed.items() if key[:2] != ("tuned", 1024)})
    assert wide.choose() == {}, "one has not ended"


@pytest.fixture
def wide(results):
    """All trials of a round that has ended, before anything is chosen from them."""
    shutil.copytree(COMMITTED / "ptb" / "tuning-wide", results / "ptb" / "tuning-wide")
    choices = {("tuned", 512, row): Choice({}) for row in ("vanilla", "noising-kneser-ney")}
    write_chosen(results / "ptb" / "chosen.toml", {**choices, ("tuned", 1024, "vanilla"): Choice({"train.lr": 0.5})})
    return results / "ptb" / "tuning-wide"


def test_no_row_of_a_round_goes_on_while_a_trial_of_another_is_missing(results, wide):
    shutil.rmtree(wide / "noising-kneser-ney-v3-seed11")
    assert names(results, "tuning-wide", "1024-tuned") == [
        job.trial_name for job in Parts(PTB, ["tuning-wide"], results).jobs()
    ], "not with what was chosen before"
    rows = ("vanilla", "noising-kneser-ney", "smoothing-kneser-ney", "element-kneser-ney")
    assert sorted(waiting(results, "tuning-wide", "1024-tuned")) == sorted(
        f"1024-tuned-{row}-seed{seed}" for row in rows for seed in (1, 2)
    ), "also those for which nothing has been chosen yet"


def test_records_that_are_not_planned_are_no_trials(results, wide):
    trial = json.loads((wide / "vanilla-v1-seed11" / "record.json").read_text())
    trial["config"]["dropout"]["tables"], trial["best"]["valid_perplexity"] = 0.9, 10.0
    (wide / "vanilla-v9-seed11").mkdir()
    (wide / "vanilla-v9-seed11" / "record.json").write_text(json.dumps(trial))
    found = Parts(PTB, ["tuning-wide"], results).choose()
    assert found["tuned", 1024, "vanilla"].set["dropout.tables"] != 0.9


def test_a_part_of_a_round_chooses_nothing_until_the_rest_has_ended(results, wide):
    some = Parts(PTB, ["tuning-wide"], results, {"arms": ["vanilla"]})
    shutil.rmtree(wide / "element-kneser-ney-v1-seed11")
    assert (len(some.jobs()), some.choose()) == (3, {})
    shutil.copytree(COMMITTED / "ptb" / "tuning-wide" / "element-kneser-ney-v1-seed11", wide / "element-kneser-ney-v1-seed11")
    assert len(some.choose()) == 4


def test_choosing_from_all_committed_trials_again_changes_nothing(tmp_path):
    for corpus in ("ptb", "wikitext-2"):
        results = tmp_path / "results"
        shutil.copytree(COMMITTED / corpus, results / corpus)
        before = (results / corpus / "chosen.toml").read_bytes()
        plan = corpus_plan(corpus)
        assert Parts(plan, all_parts(plan), results).choose() == {}
        assert (results / corpus / "chosen.toml").read_bytes() == before


@pytest.fixture
def one_row(monkeypatch, two_rounds):
    """One row, one seed, and no experiment but the one that has trials and final runs."""
    row = next(row for row in PTB.rows if row.name == "vanilla")
    plan = replace(PTB, rows=(row,), seeds={512: (1,), 1024: (2,)})
    monkeypatch.setattr("varsmooth.cli.reproducing.corpus_plan", lambda _: plan)
    alone = {"data-size": named_experiments()["data-size"]}
    monkeypatch.setattr("varsmooth.reproduce.parts.named_experiments", lambda: alone)


def test_one_call_trains_tables_trials_and_what_follows_from_the_trials(run, tmp_path, data, steps, one_row):
    arguments = ["reproduce", "ptb", "--all", "--data-dir", data, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    before = json.loads(run(*arguments, "--dry-run", "--json")[1])
    assert before["missing"] == [
        "512-paper-vanilla-seed1",
        "1024-paper-vanilla-seed2",
        "data-size-vanilla-0.5-v1-seed11",
        "data-size-vanilla-0.5-v2-seed11",
    ]
    status, shown, told = run(*arguments)
    assert status == 0, told
    assert steps == [1] * 6 + [2] * 6 + [11] * 12 + [1] * 6 + [2] * 6
    assert "| model | units |" in shown, "the headline"
    after = json.loads(run(*arguments, "--dry-run", "--json")[1])
    assert (after["missing"], after["planned"]) == ([], 6)


def test_one_call_trains_trials_chooses_and_trains_the_rows_of_the_table(run, tmp_path, data, steps, two_trials):
    results = tmp_path / "results"
    write_chosen(results / "ptb" / "chosen.toml", {("tuned", 512, "vanilla"): Choice({"train.lr": 0.002})})
    arguments = ["reproduce", "ptb", "--experiment", "tuning-rate,512-tuned"]
    arguments += ["--data-dir", data, "--out", tmp_path / "out", "--results", results]
    before = json.loads(run(*arguments, "--dry-run", "--json")[1])
    assert before["missing"] == ["tuning-rate-vanilla-v1-seed11", "tuning-rate-vanilla-v2-seed11"]
    assert before["waiting"] == 3
    assert "3 more wait for what their trials choose" in run(*arguments, "--dry-run")[2]
    status, shown, told = run(*arguments)
    assert status == 0, told
    assert steps == [11] * 12 + [1] * 6 + [2] * 6 + [3] * 6
    assert "chosen: tuned 512 vanilla: " in told
    choice = read_chosen(results / "ptb" / "chosen.toml").choices["tuned", 512, "vanilla"]
    assert choice.set["train.lr"] == 0.001
    records = sorted((results / "ptb" / "512-tuned").glob("*/record.json"))
    assert [json.loads(path.read_text())["config"]["train"]["lr"] for path in records] == [0.001] * 3
    assert ("best valid" in shown, "below the paper" in shown) == (True, True), "both parts are shown"
    after = json.loads(run(*arguments, "--dry-run", "--json")[1])
    assert (after["missing"], after["planned"]) == ([], 5)


def test_quick_trials_choose_nothing(run, tmp_path, data, steps, two_trials):
    results = tmp_path / "results"
    write_chosen(results / "ptb" / "chosen.toml", {("tuned", 512, "vanilla"): Choice({"train.lr": 0.002})})
    before = (results / "ptb" / "chosen.toml").read_bytes()
    arguments = ["--budget", "quick", "--data-dir", data, "--out", tmp_path / "out", "--results", results]
    status, _, told = run("reproduce", "ptb", "--experiment", "tuning-rate", *arguments)
    assert (status, steps, "chosen: " in told) == (0, [11] * 12, False), told
    assert (results / "ptb" / "chosen.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ("gamma,512-tunde", "did you mean '512-tuned'"),
        ("gamma,alone", "--experiment alone needs the machine to itself"),
        ("cost,gamma", "--experiment cost needs the machine to itself"),
        (",", "--experiment takes one or more names"),
        ("length,512-tuned", "chosen.toml: has no [tuned.512.ROW] yet"),
        ("tuning-512,1024-tuned", "chosen.toml: has no [tuned.1024.ROW] yet"),
        ("tuning-512 --seeds 5", "--seeds does not go with --experiment tuning-512"),
    ],
)
def test_parts_that_cannot_be_run_are_refused_in_one_line(run, tmp_path, experiment, message):
    status, shown, told = run("reproduce", "ptb", "--experiment", *experiment.split(), "--results", tmp_path)
    assert (status, shown, told.count("\n"), message in told) == (2, "", 1, True), told


@pytest.mark.parametrize("flag", [("--rows", "vanilla"), ("--seeds", "1"), ("--points", "0.1")])
@pytest.mark.parametrize("experiment", ["gamma,ablation", "512-paper"])
def test_what_chooses_runs_of_one_experiment_does_not_go_with_several(run, tmp_path, experiment, flag):
    status, _, told = run("reproduce", "ptb", "--experiment", experiment, *flag, "--results", tmp_path)
    assert (status, f"--experiment {experiment} does not go with {flag[0]}" in told) == (2, True), told
