from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeps_for_tests import tiny_study, tiny_table
from varsmooth.errors import InputError
from varsmooth.sweep import load_study, parse_study, study_names
from varsmooth.sweep.space import Range, grid, grid_size
from varsmooth.sweep.study import study_changes, study_from_mapping, study_mapping

BASE = {"train": {"batch": 4}}


def test_every_packaged_study_loads() -> None:
    assert study_names() == ["paper-grid", "quick"]
    assert [load_study(name).name for name in study_names()] == study_names()


def test_the_papers_grid_is_three_by_two_by_four() -> None:
    study = load_study("paper-grid")
    (arm,) = study.arms
    points = list(grid(arm.space))
    assert study.budget.trials == grid_size(arm.space) == len(points) == 24
    assert {point["train.lr"] for point in points} == {0.002, 0.003, 0.004}
    assert {point["train.l2"] for point in points} == {1e-4, 1e-3}
    assert {point["smoothing.gamma"] for point in points} == {0.1, 0.2, 0.3, 0.4}
    assert (arm.config.data.name, arm.config.model.hidden, arm.config.smoothing.method) == ("ptb", 512, "variational")


def test_the_quick_study_gives_several_arms_the_same_budget() -> None:
    study = load_study("quick")
    assert len(study.arms) >= 3
    assert {arm.config.train.steps for arm in study.arms} == {study.budget.steps}
    assert {arm.config.data.name for arm in study.arms} == {"synthetic"}


def test_arms_take_base_then_their_own_settings_then_the_command_lines(tmp_path: Path) -> None:
    arms = [{"recipe": "vanilla", "set": {"train.batch": 6, "train.clip": 3.0}}, {"recipe": "vanilla", "name": "b"}]
    study = parse_study(tiny_table(arms=arms), "s", tmp_path, ["train.clip=5"])
    assert [(arm.config.train.batch, arm.config.train.clip) for arm in study.arms] == [(6, 5.0), (4, 5.0)]
    assert [arm.config.data.name for arm in study.arms] == [str(tmp_path / "text")] * 2


def test_an_arms_space_goes_over_the_common_one(tmp_path: Path) -> None:
    own = {"train": {"lr": {"low": 0.001, "high": 0.1, "log": True}}, "smoothing": {"gamma": [0.1, 0.2]}}
    study = tiny_study(tmp_path, sampler="tpe", budget={"steps": 3, "trials": 2}, arms=[{"recipe": "vanilla", "space": own}])
    assert study.arms[0].space["train.lr"] == Range(0.001, 0.1, log=True)
    assert list(study.arms[0].space) == ["train.lr", "smoothing.gamma"]


def test_a_range_with_a_step_makes_a_grid_of_round_numbers() -> None:
    assert Range(0.1, 0.4, step=0.1).values() == [0.1, 0.2, 0.3, 0.4]
    assert Range(1, 7, step=3, whole=True).values() == [1, 4, 7]


def test_a_study_survives_its_database(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, seeds=[3, 4], pruner="median")
    mapping = study_mapping(study)
    assert study_mapping(study_from_mapping(mapping, {"name": str(tmp_path / "text")})) == mapping
    assert study_from_mapping(mapping, {"name": str(tmp_path / "text")}) == study


def test_changes_are_named(tmp_path: Path) -> None:
    before = study_mapping(tiny_study(tmp_path))
    after = study_mapping(tiny_study(tmp_path, space={"train": {"lr": [0.01, 0.04]}}, seeds=[7]))
    named = study_changes(before, after)
    assert named[0] == "seeds (was [], now [7])"
    assert "arms.vanilla.space.train.lr (was [0.01, 0.03], now [0.01, 0.04])" in named
    assert study_changes(before, before) == []


@pytest.mark.parametrize(("number", "flag"), [(0, False), (1, True)])
def test_yes_and_no_may_be_numbers_and_were_in_older_databases(tmp_path: Path, number: int, flag: bool) -> None:
    stored, given = (
        study_mapping(tiny_study(tmp_path, sampler={"kind": "grid", "recipe_first": yes, "distinct": yes}))
        for yes in (number, flag)
    )
    assert stored["sampler"]["distinct"] is given["sampler"]["distinct"] is flag
    older = {**stored, "sampler": {**stored["sampler"], "recipe_first": number, "distinct": number}}
    assert study_changes(older, given) == []
    assert study_from_mapping(older, {"name": str(tmp_path / "text")}).sampler.distinct == flag


def test_seeds_are_refused_by_what_the_trials_have_in_fact(tmp_path: Path) -> None:
    assert tiny_study(tmp_path, seeds=[2, 3]).seeds == (2, 3)
    table = tiny_table(seeds=[1, 2])
    assert parse_study(table, "s", tmp_path, ["train.seed=9"]).seeds == (1, 2)
    with pytest.raises(InputError, match="seeds: 2 is the seed of the trials"):
        parse_study(table, "s", tmp_path, ["train.seed=2"])
    searched = tiny_study(tmp_path, seeds=[1, 6], space={"train": {"seed": STEPS_OF_SEEDS}})
    assert searched.seeds == (1, 6), "no trial has the recipe's own seed, nor one between two steps"


LIST, ROOM = [0.1, 0.2], {"low": 0.1, "high": 0.2}
STEPS_OF_SEEDS = {"low": 3, "high": 7, "step": 2}
ARM_OF_SEED_7 = [{"recipe": "vanilla"}, {"name": "b", "recipe": "vanilla", "set": {"train.seed": 7}}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spaces": {}}, ["unknown key 'spaces'", "'space'"]),
        ({"space": {"train": {"lrr": LIST}}}, ["unknown key 'train.lrr'", "'train.lr'"]),
        ({"space": {"gamma": LIST}}, ["unknown key 'gamma'", "'smoothing.gamma'"]),
        ({"space": {"train": LIST}}, ["unknown key 'train'", "'train.lr'"]),
        ({"space": {"train": {"lr": 0.1}}}, ["train.lr", "a list of values, or a range"]),
        ({"space": {"train": {"lr": []}}}, ["train.lr", "at least one value"]),
        ({"space": {"train": {"lr": [0.1, 0.1]}}}, ["train.lr", "twice"]),
        ({"space": {"dropout": {"tables": [0, 0.0, 0.5]}}}, ["dropout.tables", "twice"]),
        ({"arms": [{"name": "Sweep.db", "recipe": "vanilla"}]}, ["'Sweep.db'", "as a file of the sweep itself"]),
        ({"arms": [{"name": "best-kn.toml", "recipe": "vanilla"}]}, ["'best-kn.toml'", "as a file of the sweep itself"]),
        ({"space": {"train": {"lr": [-1.0]}}}, ["train.lr", "(0, inf)", "-1.0"]),
        ({"space": {"train": {"lr": {"low": 0.1}}}}, ["train.lr", "both low and high"]),
        ({"space": {"train": {"lr": {**ROOM, "logg": True}}}}, ["unknown key 'logg'", "'log'"]),
        ({"space": {"train": {"lr": {"low": 0.2, "high": 0.1}}}}, ["low must be less than high", "0.2 and 0.1"]),
        ({"space": {"dropout": {"tables": {"low": 0.0, "high": 0.5, "log": True}}}}, ["low must be above 0"]),
        ({"space": {"dropout": {"tables": {"low": 0.0, "high": 1.5, "step": 0.5}}}}, ["dropout.tables", "[0, 1)", "1.5"]),
        ({"space": {"dropout": {"tables": {"low": 0.0, "high": 0.5, "step": 0.3}}}}, ["whole number of steps"]),
        ({"space": {"model": {"hidden": {"low": 4, "high": 8.5}}}}, ["model.hidden.high", "whole number", "8.5"]),
        ({"space": {"model": {"cell": {"low": 1, "high": 2}}}}, ["model.cell", "no number"]),
        ({"space": {"model": {"cell": ["lstm", "grru"]}}}, ["model.cell", "'gru'"]),
        ({"space": {"train": {"lr": ROOM}}}, ["train.lr", "a range with a step"]),
        ({"space": {"train": {"steps": [1, 2]}}}, ["train.steps", "the same for every arm"]),
        ({"space": {"data": {"max_tokens": [10, 20]}}}, ["data.max_tokens", "the same for every arm"]),
        ({"arms": [{"recipe": "vanilla", "set": {"train.steps": 9}}]}, ["arm 1", "train.steps", "the same for every arm"]),
        ({"arms": [{"recipe": "vanila"}]}, ["arm 1", "'vanilla'"]),
        ({"arms": [{"recipe": "vanilla", "sett": {}}]}, ["arm 1", "unknown key 'sett'", "'set'"]),
        ({"arms": [{"recipe": "vanilla"}, {"recipe": "vanilla"}]}, ["two arms are called 'vanilla'"]),
        ({"arms": []}, ["arms", "at least one"]),
        ({"arms": [{"recipe": "vanilla", "name": "a/b"}]}, ["name", "'a/b'"]),
        ({"budget": {"trials": 2}}, ["budget", "steps is missing"]),
        ({"budget": {"steps": 0}}, ["steps", "at least 1"]),
        ({"budget": {"steps": 5, "trials": 3}}, ["arm 'vanilla'", "a grid of 2", "3 trials"]),
        ({"budget": {"steps": 5, "minutes": -1}}, ["minutes", "above 0"]),
        ({"budget": {"steps": 5, "hours": 1}}, ["unknown key 'hours'"]),
        ({"sampler": "gird"}, ["sampler", "'grid'"]),
        ({"sampler": {"kind": "tpe", "seed": -1}}, ["sampler.seed", "-1"]),
        ({"sampler": {"kind": "tpe", "seed": True}}, ["sampler.seed", "whole number", "True"]),
        ({"sampler": {"kind": "tpe", "distinct": 2}}, ["sampler.distinct", "true or false", "2"]),
        ({"sampler": {"kind": "tpe", "recipe_first": "no"}}, ["sampler.recipe_first", "true or false", "'no'"]),
        ({"sampler": "tpe"}, ["budget", "trials, total_steps or minutes"]),
        ({"budget": {"steps": 5, "total_steps": 4}}, ["budget", "total_steps is less than the 5 steps of one trial"]),
        ({"base": {"train": {"steps": 9}}}, ["base: train.steps is 9, and budget.steps 8"]),
        ({"pruner": {"kind": "halving", "factor": 1}}, ["pruner.factor", "at least 2"]),
        ({"seeds": [1, "2"]}, ["seeds", "whole numbers"]),
        ({"seeds": [2, 1]}, ["seeds: 1 is the seed of the trials of arm 'vanilla'", "choose other seeds", "under base"]),
        ({"seeds": [7], "arms": ARM_OF_SEED_7}, ["seeds: 7 is the seed of the trials of arm 'b'"]),
        ({"seeds": [5], "space": {"train": {"seed": [4, 5]}}}, ["seeds: 5 is among the seeds that arm 'vanilla' searches"]),
        (
            {"seeds": [5], "space": {"train": {"seed": STEPS_OF_SEEDS}}},
            ["seeds: 5 is among the seeds", "the space of train.seed"],
        ),
        ({"base": {"train": {"batchh": 3}}}, ["base", "'train.batch'"]),
        ({"name": None}, ["name"]),
    ],
)
def test_a_study_that_cannot_be_is_refused_by_name(changes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        parse_study(tiny_table(**changes), "study.toml", tmp_path)
    message = str(refused.value)
    assert message.startswith("study.toml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_grids_of_unequal_size_are_refused(tmp_path: Path) -> None:
    arms = [{"recipe": "vanilla"}, {"recipe": "smoothing-kneser-ney", "space": {"smoothing": {"gamma": [0.1, 0.2]}}}]
    with pytest.raises(
        InputError, match=r"arm 'smoothing-kneser-ney' has a grid of 4, and the budget of every arm is 2 trials"
    ):
        tiny_study(tmp_path, arms=arms)


def test_arms_whose_recipes_have_other_texts_are_refused(tmp_path: Path) -> None:
    arms = [{"recipe": "vanilla/ptb-512"}, {"recipe": "smoothing-kneser-ney/wikitext-2-512"}]
    table = tiny_table(arms=arms)
    del table["data"]
    with pytest.raises(InputError, match=r"have other texts.*data\.name is 'ptb' and 'wikitext-2'"):
        parse_study(table, "study.toml", tmp_path)
    assert {arm.config.data.name for arm in parse_study({**table, "data": "ptb"}, "study.toml", tmp_path).arms} == {"ptb"}


def test_a_text_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = parse_study(tiny_table(), "study.toml", Path(), ["data.data_dir=here"])
    data = study.arms[0].config.data
    assert (data.name, data.data_dir) == (str(tmp_path / "text"), str(tmp_path / "here"))


def test_values_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    arms = [{"recipe": "smoothing-kneser-ney"}]
    space = {"smoothing": {"output": ["target", "table"], "granularity": ["word", "element"]}}
    with pytest.raises(InputError, match=r"target needs smoothing\.granularity=word"):
        tiny_study(tmp_path, arms=arms, space=space)


def test_an_unknown_study_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'quick'"):
        load_study("quik")
