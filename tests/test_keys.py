from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from varsmooth.config import Config, override, to_mapping
from varsmooth.keys import all_keys, configuration_page, explained_toml
from varsmooth.recipe import load_recipe

KEYS = {key.name: key for key in all_keys()}


def test_every_key_is_there_in_the_order_of_the_file() -> None:
    mapping = to_mapping(Config())
    sections = {name: values for name, values in mapping.items() if name != "name"}
    assert list(KEYS) == ["name", *(f"{section}.{key}" for section, values in sections.items() for key in values)]
    for name, key in KEYS.items():
        section, _, last = name.rpartition(".")
        assert tomllib.loads(f"value = {key.default}")["value"] == (mapping[section] if section else mapping)[last]
        assert 5 < len(key.explanation) < 110
        assert "\n" not in key.comment


def test_what_is_allowed_is_told_in_words() -> None:
    assert KEYS["model.cell"].allowed == "`lstm`, `gru`"
    assert KEYS["model.tied"].allowed == "`true`, `false`"
    assert KEYS["data.name"].allowed == "text"
    assert KEYS["train.steps"].allowed == "whole number from 1 to 1,000,000,000"
    assert KEYS["train.seed"].allowed == "whole number from 0 to below 4,294,967,296"
    assert KEYS["train.lr"].allowed == "number above 0"
    assert KEYS["train.l2"].allowed == "number from 0 to 1e+30"
    assert KEYS["smoothing.variance"].allowed == "number from 0 up"
    assert KEYS["smoothing.gamma"].allowed == "number from 0 to 1"
    assert KEYS["dropout.tables"].allowed == "number from 0 to below 1"
    assert KEYS["train.plateau_factor"].allowed == "number above 0 and below 1"


@pytest.mark.parametrize("name", ["vanilla", "element-kneser-ney/ptb-512", "word-dropout/demo"])
def test_an_explained_recipe_is_a_recipe(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(explained_toml(load_recipe(name)), "utf-8")
    assert load_recipe(path) == load_recipe(name)


def test_odd_text_stays_text_before_its_comment(tmp_path: Path) -> None:
    config = override(Config(), ['data.name=a # b \\ "c" \u00e9', "name=mine"])
    path = tmp_path / "mine.toml"
    path.write_text(explained_toml(config), "utf-8")
    assert load_recipe(path) == config


def test_every_line_of_an_explained_recipe_has_its_comment() -> None:
    lines = [line for line in explained_toml(Config()).splitlines() if " = " in line]
    assert [line.partition("  # ")[2] for line in lines] == [key.comment for key in KEYS.values()]
    assert 'cell = "lstm"  ' in explained_toml(Config())
    assert KEYS["model.cell"].comment == "the recurrent cell (lstm, gru)"


def test_the_page_has_a_row_for_each_key() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `[^`|]*` \| [^|]+ \| [^|]+ \|$", configuration_page(), re.MULTILINE)
    assert rows == list(KEYS)
