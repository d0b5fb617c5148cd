from __future__ import annotations

import json

import pytest

from runs_for_tests import record
from varsmooth import InputError
from varsmooth.config import override, to_mapping
from varsmooth.recipe import load_recipe
from varsmooth.reproduce import (
    Choice,
    TuningTrial,
    best_of,
    choose_below,
    corpus_plan,
    read_chosen,
    table_jobs,
    write_chosen,
)
from varsmooth.reproduce.choosing import choose
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.matching import standard_checksums
from varsmooth.reproduce.page import chosen_table
from varsmooth.reproduce.records import Records

TRIALS = (
    TuningTrial({"train.lr": 0.002, "smoothing.predict": "mode"}, 9000, 70.25),
    TuningTrial({"train.lr": 0.003, "model.tied": True}, 9000, 69.5),
    TuningTrial({"train.lr": 0.1, "data.name": 'a "quoted" name'}, 9000, None),
    TuningTrial({"train.lr": 0.004}, 3000, 60.0),
)


def test_what_is_written_is_read_back(tmp_path):
    choices = {("tuned", 512, "vanilla"): best_of(TRIALS), ("paper", 1024, "smoothing-kneser-ney"): Choice({})}
    write_chosen(tmp_path / "chosen.toml", choices)
    assert read_chosen(tmp_path / "chosen.toml").choices == choices


def test_the_best_on_the_development_set_is_chosen_among_the_longest():
    assert best_of(TRIALS) == Choice({"train.lr": 0.003, "model.tied": True}, TRIALS)
    assert best_of(TRIALS[2:3]) is None


def test_chosen_values_reach_the_runs_and_a_larger_model_inherits_what_it_does_not_say(tmp_path):
    path = tmp_path / "chosen.toml"
    path.write_text(
        'format = "varsmooth.chosen.1"\n'
        "[tuned.512.smoothing-kneser-ney]\n"
        'set = {"train.lr" = 0.002, "train.l2" = 1e-3, "smoothing.gamma" = 0.3, "dropout.tables" = 0.6}\n'
        "[tuned.1024.smoothing-kneser-ney]\n"
        'set = {"dropout.tables" = 0.65, "train.l2" = 1e-4}\n'
    )
    chosen = read_chosen(path)
    jobs = [table_jobs(corpus_plan("ptb"), chosen, size=size, setting="tuned", seeds=[1]) for size in (512, 1024)]
    assert [[job.name for job in each] for each in jobs] == [["smoothing-kneser-ney-seed1"]] * 2, "the rows that were tuned"
    small, large = (each[0].config for each in jobs)
    assert (small.train.lr, small.train.l2, small.smoothing.gamma, small.dropout.tables) == (0.002, 0.001, 0.3, 0.6)
    assert load_recipe("smoothing-kneser-ney/ptb-1024").train.lr == 0.003
    assert (large.train.lr, large.train.l2, large.smoothing.gamma, large.dropout.tables) == (0.003, 0.0001, 0.3, 0.65)
    assert chosen.values("paper", 512, "smoothing-kneser-ney") == {}


def test_a_size_with_trials_of_its_own_inherits_nothing():
    trials = (TuningTrial({"dropout.tables": 0.65}, 9, 60.0),)
    choices = {
        ("tuned", 512, "vanilla"): Choice({"train.lr": 0.006}),
        ("tuned", 1024, "vanilla"): Choice({"dropout.tables": 0.65}, trials),
    }
    chosen = Chosen("chosen.toml", choices)
    assert chosen.values("tuned", 1024, "vanilla") == {"dropout.tables": 0.65}, "its best trial had the recipe's learning rate"


def test_without_trials_a_size_is_not_tuned_before_the_smaller_one_it_inherits_from():
    larger = {("tuned", 1024, "vanilla"): Choice({"dropout.recurrent": 0.3})}
    early = Chosen("chosen.toml", larger)
    assert not early.has_tuned(1024)
    for ask in (lambda: early.tuned_rows(1024), lambda: early.values("tuned", 1024, "vanilla")):
        with pytest.raises(InputError, match=r"no \[tuned\.512\.vanilla\] yet, which \[tuned\.1024\.vanilla\] builds on"):
            ask()
    later = early.over({("tuned", 512, "vanilla"): Choice({"train.warm_up": 9}), **larger})
    assert later.tuned_rows(1024) == ["vanilla"]
    assert later.values("tuned", 1024, "vanilla") == {"train.warm_up": 9, "dropout.recurrent": 0.3}


def test_a_setting_that_does_not_exist_is_named_with_its_file(tmp_path):
    path = tmp_path / "chosen.toml"
    path.write_text('format = "varsmooth.chosen.1"\n[paper.512.vanilla]\nset = {"train.lrr" = 0.002}\n')
    with pytest.raises(InputError, match=r"chosen.toml, paper.512.vanilla: unknown key 'train.lrr'; did you mean 'train.lr'"):
        table_jobs(corpus_plan("ptb"), read_chosen(path), size=512)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[paper.512.vanilla]\n", "must begin with format"),
        ("[papr.512.vanilla]\n", "did you mean 'paper'"),
        ("[paper.big.vanilla]\n", "must name a size"),
        ("[paper.512]\nvanilla = 3\n", "paper.512.vanilla must be a table"),
        ('[paper.512.vanilla]\nsett = {"a" = 1}\n', "did you mean 'set'"),
        ("[paper.512.vanilla]\nset = 3\n", "vanilla.set must be a table"),
        ("[[paper.512.vanilla.trials]]\nsteps = 3\n", "every trial needs set, steps"),
        ("= 3", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "chosen.toml"
    path.write_text(text if "format" in message else f'format = "varsmooth.chosen.1"\n{text}')
    with pytest.raises(InputError, match=message) as refused:
        read_chosen(path)
    assert str(path) in str(refused.value)


def test_the_page_tells_what_was_chosen_from_which_trials_and_what_without_any(tmp_path):
    trials = (TuningTrial({}, 500, 70.0), TuningTrial({"train.lr": 0.004}, 1000, 66.5), TuningTrial({}, 1000, None))
    choices = {("paper", 512, "vanilla"): best_of(trials), ("paper", 1024, "vanilla"): Choice({"train.l2": 0.001})}
    write_chosen(tmp_path / "ptb" / "chosen.toml", choices)
    _, _, tried, untried = chosen_table(tmp_path, corpus_plan("ptb")).text.splitlines()
    assert tried == "| vanilla | 512 | paper | `train.lr=0.004` | 3 | 1,000 | 2 | 66.50 |"
    assert untried == "| vanilla | 1024 | paper | `train.l2=0.001` | - | - | - | - |"


def test_without_a_file_nothing_was_chosen(tmp_path):
    assert read_chosen(tmp_path / "absent.toml").choices == {}


def test_a_record_of_a_row_that_was_not_tuned_is_not_shown_beside_those_that_were(results, keep):
    write_chosen(results / "ptb" / "chosen.toml", {("tuned", 512, "vanilla"): Choice({"train.lr": 0.004})})
    keep("vanilla", 65.0, group="512-tuned")
    keep("smoothing-kneser-ney", 60.0, group="512-tuned")
    group = Records(results).group("ptb", "512-tuned")
    assert (list(group.runs), group.left_out) == (["vanilla"], ("smoothing-kneser-ney-seed1",))
    (results / "ptb" / "chosen.toml").unlink()
    assert len(Records(results).group("ptb", "512-tuned").runs) == 2, "without choices, records speak for themselves"


# From the runs of a sweep


@pytest.fixture
def trial(tmp_path):
    def trial(
        number: int, valid: float | None, *settings: str, row: str = "vanilla", steps: int = 100, **changes: object
    ) -> None:
        config = override(load_recipe(f"{row}/ptb-512"), ["train.steps=100", "evaluate.batch=3", *settings])
        folder = tmp_path / "sweep" / row / f"trial-{number}"
        folder.mkdir(parents=True)
        content = record(row, config.train.seed, config=to_mapping(config), steps=steps)
        content["data"] |= {"name": "ptb", "checksums": standard_checksums("ptb")}
        content["best"]["valid_perplexity"] = valid
        (folder / "record.json").write_text(json.dumps({**content, **changes}))

    return trial


def test_the_runs_of_a_sweep_become_choices(tmp_path, trial):
    trial(0, 80.0)
    trial(1, 79.0, "train.lr=0.002", "dropout.tables=0.6")
    trial(2, 60.0, "train.lr=0.004", steps=30, status="pruned")
    trial(3, 10.0, "train.lr=0.5", status="failed")
    trial(4, 81.0, "dropout.tables=0.4", "train.seed=1")
    trial(5, 73.0, "dropout.tables=0.4", "train.seed=2")
    trial(0, 75.0, "smoothing.gamma=0.3", row="smoothing-kneser-ney")
    trial(0, 1.0, row="word-dropout")
    path = tmp_path / "results" / "chosen.toml"
    write_chosen(path, {("paper", 512, "vanilla"): Choice({"train.lr": 0.003})})
    found = choose_below(tmp_path / "sweep", corpus_plan("ptb"), "tuned", path)
    assert set(found) == {("tuned", 512, "vanilla"), ("tuned", 512, "smoothing-kneser-ney")}
    vanilla = found["tuned", 512, "vanilla"]
    assert vanilla.set == {"dropout.tables": 0.4}, "77 over two seeds; nothing of how long or on what a trial was"
    assert vanilla.trials == (
        TuningTrial({}, 100, 80.0),
        TuningTrial({"train.lr": 0.002, "dropout.tables": 0.6}, 100, 79.0),
        TuningTrial({"train.lr": 0.004}, 30, 60.0),
        TuningTrial({"train.lr": 0.5}, 100, None),
        TuningTrial({"dropout.tables": 0.4}, 100, 77.0),
    )
    assert read_chosen(path).choices == {("paper", 512, "vanilla"): Choice({"train.lr": 0.003}), **found}


def test_a_trial_that_patience_ended_is_compared_with_those_that_went_on(tmp_path, trial):
    trial(0, 80.0, "train.patience=3")
    trial(1, 70.0, "train.lr=0.002", "train.patience=3", steps=60, stopped_because="patience")
    found = choose_below(tmp_path / "sweep", corpus_plan("ptb"), "tuned", tmp_path / "chosen.toml")
    assert found["tuned", 512, "vanilla"].set == {"train.lr": 0.002}


def test_the_time_of_the_trials_is_added_to_what_was_spent(tmp_path, trial):
    trial(0, 80.0, hardware={"name": "a card"})
    trial(1, 79.0, "train.lr=0.002")
    path = tmp_path / "results" / "chosen.toml"
    choose_below(tmp_path / "sweep", corpus_plan("ptb"), "paper", path)
    assert not (tmp_path / "results" / "spent.jsonl").exists(), "nothing says how long they took"
    for part, seconds in (("vanilla", 30.5), ("vanilla/trial-1", 20.0)):
        (tmp_path / "sweep" / part / "spent.json").write_text(json.dumps({"seconds": seconds}))
    (tmp_path / "results" / "spent.jsonl").write_text(json.dumps({"groups": ["512-paper"], "seconds": 1}) + "\n")
    for _ in range(2):
        choose_below(tmp_path / "sweep", corpus_plan("ptb"), "paper", path)
    table, tuning = (json.loads(line) for line in (tmp_path / "results" / "spent.jsonl").read_text().splitlines())
    assert table["groups"] == ["512-paper"]
    expected = {"groups": ["tuning-paper-sweep"], "runs": 2, "finished": 2, "seconds": 50.5, "hardware": "a card"}
    assert tuning == expected


def test_a_row_whose_longest_trials_all_failed_keeps_what_was_chosen(tmp_path, trial):
    trial(0, None, "train.lr=0.5", status="failed")
    path = tmp_path / "chosen.toml"
    with pytest.raises(InputError, match=r"--choose-from .*sweep: none of the longest trials has a development perplexity"):
        choose_below(tmp_path / "sweep", corpus_plan("ptb"), "tuned", path)
    write_chosen(path, {("tuned", 512, "vanilla"): Choice({"train.lr": 0.003})})
    trial(1, 75.0, row="smoothing-kneser-ney")
    folders = [tmp_path / "sweep" / "vanilla" / "trial-0", tmp_path / "sweep" / "smoothing-kneser-ney" / "trial-1"]
    assert set(choose(folders, corpus_plan("ptb"), "tuned", path, "here")) == {("tuned", 512, "smoothing-kneser-ney")}
    assert read_chosen(path).choices["tuned", 512, "vanilla"] == Choice({"train.lr": 0.003})


def test_values_with_which_a_seed_fails_are_not_chosen(tmp_path, trial):
    trial(0, 80.0)
    trial(1, 60.0, "train.lr=0.02", "train.seed=1")
    trial(2, 60.0, "train.lr=0.02", "train.seed=2", status="failed", steps=43)
    (choice,) = choose_below(tmp_path / "sweep", corpus_plan("ptb"), "tuned", tmp_path / "chosen.toml").values()
    assert (choice.set, choice.trials[1].valid_perplexity) == ({}, None)


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ([], {"status": "stopped"}, r"trial-0 has not ended \(stopped\)"),
        ([], {"status": "running"}, r"trial-0 has not ended \(stopped\)"),  # as nobody writes there
        ([], {"status": "failed", "stopped_because": "disk full"}, r"trial-0 failed \(disk full\), which says nothing of its"),
        ([], {"data": {"name": "ptb", "checksums": {"train": "abc"}}}, "trained on another copy of ptb"),
        (["dropout.tables=0.6"], {}, "trials of vanilla differ in dropout; say --setting tuned"),
    ],
)
def test_trials_that_cannot_be_compared_are_refused(tmp_path, trial, settings, changes, message):
    trial(0, 80.0, *settings, **changes)
    with pytest.raises(InputError, match=message):
        choose_below(tmp_path / "sweep", corpus_plan("ptb"), "paper", tmp_path / "chosen.toml")


def test_the_verb_chooses_and_says_what(tmp_path, trial, run):
    trial(1, 79.0, "train.lr=0.002")
    common = ["reproduce", "ptb", "--setting", "tuned", "--choose-from", tmp_path / "sweep", "--results", tmp_path / "results"]
    assert run(*common) == (0, "tuned 512 vanilla: train.lr=0.002 (1 trials)\n", "")
    (told,) = json.loads(run(*common, "--json")[1])
    assert (told["row"], told["set"]) == ("vanilla", {"train.lr": 0.002})
    status, _, complaint = run("reproduce", "wikitext-2", "--choose-from", tmp_path / "sweep")
    assert (status, complaint.count("\n")) == (2, 1)
    assert "holds no run of a row of wikitext-2" in complaint
