from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from varsmooth import InputError
from varsmooth.config import to_mapping
from varsmooth.fleet import Trial, read_trials, recipe_trials
from varsmooth.fleet.trials import FLEET_FILE, read_list, write_list
from varsmooth.recipe import load_recipe
from varsmooth.train.folder import DiskFullError

BAD_NAMES = ("a/b", "..", ".x", "", "a b", "a" * 256, "漢" * 86)


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "trials.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def names(trials: list[Trial]) -> list[str]:
    return [trial.name for trial in trials]


def test_recipes_times_seeds(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "vanilla"\n[train]\nlr = 0.25\nseed = 9\n')
    trials = recipe_trials(["smoothing-kneser-ney/ptb-512", str(tmp_path / "mine.toml")], [3, 1], ["train.steps=7"])
    assert names(trials) == [
        "smoothing-kneser-ney-ptb-512-seed3",
        "smoothing-kneser-ney-ptb-512-seed1",
        "mine-seed3",
        "mine-seed1",
    ]
    assert [trial.config.train.seed for trial in trials] == [3, 1, 3, 1]
    assert [trial.config.train.lr for trial in trials][2:] == [0.25, 0.25]
    assert {trial.config.train.steps for trial in trials} == {7}
    assert trials[0].config.name == "smoothing-kneser-ney/ptb-512"


def test_without_seeds_each_recipe_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "vanilla"\n[train]\nseed = 9\n')
    assert names(recipe_trials(["vanilla", str(tmp_path / "mine.toml")], [], [])) == ["vanilla-seed1", "mine-seed9"]


def test_a_file_says_what_differs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "vanilla"\n[model]\nhidden = 77\n')
    path = written(
        tmp_path,
        [
            {"name": "kn-1", "recipe": "smoothing-kneser-ney/ptb-512", "set": {"train.lr": 1}, "seed": 2, "data": "ptb"},
            {"recipe": "mine.toml", "set": {"data.name": "synthetic", "model.tied": False, "smoothing.predict": "mode"}},
            {"recipe": "vanilla", "seed": 4, "set": {"train.seed": 3}},
        ],
    )
    first, second, third = read_trials(path, ["train.steps=5"])
    assert names([first, second, third]) == ["kn-1", "mine-seed1", "vanilla-seed4"]
    assert (first.config.train.lr, first.config.train.seed, first.config.data.name) == (1.0, 2, "ptb")
    assert (second.config.model.hidden, second.config.model.tied, second.config.data.name) == (77, False, "synthetic")
    assert third.config.train.seed == 4
    assert {trial.config.train.steps for trial in (first, second, third)} == {5}


def test_the_command_line_goes_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, [{"recipe": "vanilla", "set": {"train.lr": 0.5}, "data": "ptb"}])
    (trial,) = read_trials(path, ["train.lr=0.25", "data.name=synthetic"])
    assert (trial.config.train.lr, trial.config.data.name) == (0.25, "synthetic")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[{", ["not valid JSON"]),
        ("[" * 100_000, ["not valid JSON"]),
        ({"recipe": "vanilla"}, ["must hold a list of trials"]),
        ([], ["must hold a list of trials"]),
        (["vanilla"], ["trial 1", "must be an object", "'vanilla'"]),
        ([{"recipe": "vanilla"}, {"recipes": "vanilla"}], ["trial 2", "unknown key 'recipes'", "did you mean 'recipe'"]),
        ([{"recipe": "vanilla", "zzz": 1}], ["unknown key 'zzz'", "name, recipe, set, seed, data"]),
        ([{"seed": 1}], ["trial 1", "recipe must be"]),
        ([{"recipe": 3}], ["recipe must be"]),
        ([{"recipe": "vanila"}], ["trial 1", "did you mean 'vanilla'"]),
        ([{"recipe": "absent.toml"}], ["trial 1", "absent.toml"]),
        ([{"recipe": "vanilla", "set": {"train.lrr": 1}}], ["trial 1", "'train.lrr'", "'train.lr'"]),
        ([{"recipe": "vanilla", "set": {"lr": 1}}], ["trial 1", "'lr'", "'train.lr'"]),
        ([{"recipe": "vanilla", "set": {"name.lr": 1}}], ["trial 1", "'name.lr'"]),
        ([{"recipe": "vanilla", "set": {"train": 1}}], ["train is a section"]),
        ([{"recipe": "vanilla", "set": {"train.lr": None}}], ["train.lr must be a number"]),
        ([{"recipe": "vanilla", "set": ["train.lr=1"]}], ["set must be an object"]),
        ([{"recipe": "vanilla", "seed": "one"}], ["train.seed must be a whole number"]),
        ([{"recipe": "vanilla", "seed": -1}], ["train.seed must be in"]),
        ([{"recipe": "vanilla", "data": 5}], ["data.name must be a string"]),
        ([{"recipe": "vanilla", "name": 5}], ["name must be text"]),
        *(([{"recipe": "vanilla", "name": name}], ["cannot name a run's folder"]) for name in BAD_NAMES),
        ([{"recipe": "vanilla", "name": "fleet.json"}], ["'fleet.json' is taken"]),
        ([{"recipe": "vanilla", "name": "spent.json"}], ["'spent.json' is taken"]),
        ([{"recipe": "vanilla"}, {"recipe": "vanilla"}], ["'vanilla-seed1' is taken"]),
        ([{"recipe": "vanilla", "name": "A"}, {"recipe": "vanilla", "name": "a"}], ["'a' is taken"]),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: Any, words: list[str]) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError) as error:
        read_trials(path, [])
    for word in (str(path), *words):
        assert word in str(error.value)


def test_bad_recipes_are_refused(tmp_path: Path) -> None:
    for recipes, seeds, word in (
        (["vanilla", "vanilla"], [], "is taken"),
        (["vanilla"], [1, 1], "is taken"),
        (["vanilla", "trials.json"], [], "one .json file alone"),
        ([], [], "no run to train"),
    ):
        with pytest.raises(InputError, match=word):
            recipe_trials(recipes, seeds, [])


def test_the_list_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path, [{"recipe": "element-kneser-ney/small", "name": "größe-1", "set": {"train.lr": 1 / 3}}])
    trials = [*read_trials(path, []), *recipe_trials(["vanilla", "noising-blank"], [1, 2], [])]
    write_list(tmp_path, trials)
    assert read_list(tmp_path) == trials


def test_a_full_disk_leaves_the_old_list_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trials = recipe_trials(["vanilla"], [1, 2], [])
    write_list(tmp_path, trials)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskFullError, match=rf"disk full while writing .*fleet\.json;.* varsmooth train --resume {tmp_path}"):
        write_list(tmp_path, trials[:1])
    assert read_list(tmp_path) == trials


def test_paths_hold_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (trial,) = recipe_trials(["vanilla"], [], ["data.name=text", "data.data_dir=there"])
    assert trial.config.data.name == str(tmp_path / "text")
    assert trial.config.data.data_dir == str(tmp_path / "there")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{}", "not the list of a fleet"),
        ("[]", "not the list of a fleet"),
        ('{"format": "varsmooth.fleet.1"}', "not a list of trials"),
        ('{"format": "varsmooth.fleet.1", "trials": [{"name": "a", "config": 3}]}', "not a list of trials"),
        ('{"format": "varsmooth.fleet.1", "trials": [{"name": "../a", "config": {}}]}', "cannot name a run's folder"),
        ('{"format": "varsmooth.fleet.1", "trials": [{"name": 3, "config": {}}]}', "cannot name a run's folder"),
        ('{"format": "varsmooth.fleet.1", "trials": []}', "no run to train"),
        ('{"format": "varsmooth.fleet.1", "trials": [{"name": "a", "config": {"train": {"lrr": 1}}}]}', "train.lrr"),
    ],
)
def test_a_damaged_list_is_refused(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "fleet.json").write_text(content)
    with pytest.raises(InputError, match=word):
        read_list(tmp_path)


def test_a_list_with_whole_configurations_does_not_depend_on_recipes(tmp_path: Path) -> None:
    write_list(tmp_path, recipe_trials(["vanilla"], [5], []))
    (entry,) = json.loads((tmp_path / FLEET_FILE).read_text())["trials"]
    assert entry["config"]["train"]["seed"] == 5
    assert entry["config"]["dropout"] == to_mapping(load_recipe("vanilla"))["dropout"]
