from __future__ import annotations

import json
import re
from pathlib import Path

from commands_for_tests import Run
from varsmooth.config import override, to_mapping
from varsmooth.recipe import described_rows, described_settings, load_recipe, recipe_names


def test_the_list_explains_each_row_and_each_setting_once(run: Run) -> None:
    status, shown, _ = run("recipes")
    assert status == 0
    listed = re.findall(r"^([a-z0-9-]+) {2,}\S", shown, re.MULTILINE)
    assert listed == ["row", *described_rows(), "setting", *described_settings()]
    words = " ".join(shown.split())
    assert "512 units and 20,000 steps" in words
    assert "varsmooth recipes NAME" in words


def test_the_list_as_json(run: Run) -> None:
    status, shown, _ = run("recipes", "--json")
    assert status == 0
    expected = {"recipes": recipe_names(), "rows": described_rows(), "settings": described_settings()}
    assert json.loads(shown) == expected


def test_what_is_printed_of_a_recipe_is_a_recipe(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    status, shown, _ = run("recipes", "smoothing-kneser-ney/small")
    path.write_text(shown, "utf-8")
    assert status == 0
    assert "hidden = 64 " in shown
    assert "# units per layer" in shown
    assert load_recipe(path) == load_recipe("smoothing-kneser-ney/small")
    assert run("recipes", path) == (0, shown, "")


def test_a_recipe_as_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "vanilla/small"\n[train]\nlr = 0.5\n')
    status, shown, _ = run("recipes", path, "--json")
    assert status == 0
    assert json.loads(shown) == to_mapping(override(load_recipe("vanilla/small"), ["train.lr=0.5", "name=mine"]))


def test_unknown_names_get_one_line(run: Run) -> None:
    assert run("recipes", "vanila") == (2, "", "varsmooth: unknown recipe 'vanila'; did you mean 'vanilla'?\n")
    status, _, complaint = run("recipes", "absent.toml")
    assert (status, complaint.startswith("varsmooth: absent.toml: cannot be read: ")) == (2, True)


def test_the_help_of_train_says_what_the_default_is_and_where_the_keys_are(run: Run) -> None:
    words = " ".join(run("train", "--help")[1].replace("\u2502", " ").split())
    plain = load_recipe("vanilla")
    assert f"vanilla with {plain.model.hidden} units for {plain.train.steps:,} steps" in words
    assert "varsmooth recipes NAME prints every key" in words
    assert "bit for bit on a CPU with as many threads, within rounding on a GPU" in words
