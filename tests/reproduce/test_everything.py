"""All tables and experiments of a corpus as one list of runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from varsmooth.reproduce import all_jobs, corpus_plan, named_experiments
from varsmooth.reproduce.chosen import Choice, Chosen

PTB = corpus_plan("ptb")


def groups(chosen: Chosen, corpus: str = "ptb", budget: str = "full") -> list[str]:
    return list(dict.fromkeys(job.group for job in all_jobs(corpus_plan(corpus), chosen, budget)))


def test_tables_come_first_and_what_nothing_was_chosen_for_is_left_out():
    nothing = Chosen("chosen.toml", {})
    found = groups(nothing)
    of_the_paper = {name for name, it in named_experiments().items() if "ptb" in it.corpora and it.setting == "paper"}
    assert found[:2] == ["512-paper", "1024-paper"]
    assert {*found[2:]} == of_the_paper - {"alone"}, "which would not be alone in a fleet"
    assert "gamma" not in groups(nothing, "wikitext-2")


def test_what_was_chosen_makes_tuned_tables_and_experiments_known():
    small = Chosen("chosen.toml", {("tuned", 512, "vanilla"): Choice({"train.lr": 0.004})})
    found = groups(small)
    assert found[:3] == ["512-paper", "512-tuned", "1024-paper"]
    assert {"length", "tuning-1024"} <= {*found}
    assert "length-quick" not in groups(small, budget="quick"), "which is about the length itself"
    both = Chosen("chosen.toml", {**small.choices, ("tuned", 1024, "vanilla"): Choice({})})
    assert groups(both)[:4] == ["512-paper", "512-tuned", "1024-paper", "1024-tuned"]
    tuned = [job.config for job in all_jobs(PTB, both) if job.group == "512-tuned"]
    assert [(config.name, config.train.lr) for config in tuned] == [("vanilla/ptb-512", 0.004)] * 3


@pytest.fixture
def one_row(monkeypatch, two_rounds):
    """One row, one seed, and no experiment but the one that has trials and final runs."""
    row = next(row for row in PTB.rows if row.name == "vanilla")
    plan = replace(PTB, rows=(row,), seeds={512: (1,), 1024: (2,)})
    monkeypatch.setattr("varsmooth.cli.reproducing.corpus_plan", lambda _: plan)
    alone = {"data-size": named_experiments()["data-size"]}
    monkeypatch.setattr("varsmooth.reproduce.everything.named_experiments", lambda: alone)


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
