from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.config import (
    HINTS,
    Config,
    SmoothingConfig,
    TrainConfig,
    config_checksum,
    config_from_mapping,
    load_config,
    override,
    parse_toml,
    to_mapping,
    to_toml,
)
from varsmooth.errors import InputError

KEYS = [f"{section}.{key}" for section, keys in HINTS.items() for key in keys]
SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2))


def refusal(*settings: str) -> str:
    with pytest.raises(InputError) as error:
        override(Config(), settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_partial_file_keeps_the_other_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("\ufeff[train]\nlr = 1\nseed = 4294967295\n", "utf-8")
    config = load_config(path)
    assert config == Config(train=TrainConfig(lr=1.0, seed=2**32 - 1))
    assert isinstance(config.train.lr, float)


def test_round_trip(tmp_path: Path) -> None:
    config = override(
        Config(), ["train.lr=1e-05", "model.tied=false", 'data.name=a \\ "b" \x7f\té\U0001f600', "train.clip=1e20"]
    )
    path = tmp_path / "config.toml"
    path.write_bytes(to_toml(config).encode())
    assert load_config(path) == config
    assert config_from_mapping(to_mapping(config), "here") == config


@settings(deadline=None)
@given(st.text(), st.floats(0, 1), st.integers(1, 10**9), st.booleans())
def test_round_trip_of_any_value(name: str, gamma: float, steps: int, tied: bool) -> None:
    mapping = {"data": {"name": name}, "smoothing": {"gamma": gamma}, "train": {"steps": steps}, "model": {"tied": tied}}
    try:
        config = config_from_mapping({"name": name, **mapping}, "here")
    except InputError:
        assert "\0" in name
        return
    assert config_from_mapping(parse_toml(to_toml(config), "there"), "there") == config


def test_checksum_depends_on_every_value_and_not_on_how_it_was_written() -> None:
    assert config_checksum(override(Config(), ["train.clip=10"])) == config_checksum(Config())
    assert config_checksum(override(Config(), ["smoothing.gamma=-0.0"])) == config_checksum(
        override(Config(), ["smoothing.gamma=0"])
    )
    changed = [override(Config(), [f"{key}=1"]) for key in KEYS if isinstance(_default(key), int) and _default(key) != 1]
    assert len({config_checksum(config) for config in [Config(), *changed]}) == len(changed) + 1


def _default(key: str) -> Any:
    section, _, name = key.partition(".")
    return to_mapping(Config())[section][name] if name != "tied" else None


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("train.lr=0.004", 0.004),
        ("train.steps = 3", 3),
        ("model.tied=false", False),
        ("model.cell=gru", "gru"),
        ("model.cell='gru'", "gru"),
        ("data.name=some/folder=x", "some/folder=x"),
        ("data.name=1984", "1984"),
        ("data.name=true", "true"),
        ("data.name=", ""),
        ("data.name='1984'", "1984"),
    ],
)
def test_override(setting: str, value: object) -> None:
    section, _, key = setting.partition("=")[0].strip().partition(".")
    assert getattr(getattr(override(Config(), [setting]), section), key) == value


def test_last_override_wins_and_the_result_is_checked_as_a_whole() -> None:
    assert override(Config(), ["train.lr=1", "train.lr=2"]).train.lr == 2
    together = ["smoothing.tie=shared-draw", "smoothing.scope=batch", "smoothing.output=table"]
    assert override(Config(), together).smoothing.tie == "shared-draw"
    assert override(Config(), ["name=mine"]).name == "mine"
    assert override(Config(), []) == Config()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("smoothing.gamma=1.5", "--set: smoothing.gamma must be in [0, 1], got 1.5"),
        ("smoothing.gamma=nan", "--set: smoothing.gamma must be in [0, 1], got nan"),
        ("dropout.tables=1", "--set: dropout.tables must be in [0, 1), got 1"),
        ("train.lr=0", "--set: train.lr must be in (0, inf), got 0"),
        ("train.lr=inf", "--set: train.lr must be in (0, inf), got inf"),
        (f"train.lr={10**400}", "--set: train.lr must be in (0, inf), got 1000"),
        (f"train.lr=0x{'f' * 5000}", "--set: train.lr must be in (0, inf), got a very large int"),
        ("train.lr=fast", "--set: train.lr must be a number, got 'fast'"),
        ("train.lr=true", "--set: train.lr must be a number, got True"),
        ("train.steps=0", "--set: train.steps must be in [1, 1000000000], got 0"),
        ("train.steps=1.0", "--set: train.steps must be a whole number, got 1.0"),
        ("train.seed=4294967296", "--set: train.seed must be in [0, 4294967296), got 4294967296"),
        ("train.plateau_factor=1", "--set: train.plateau_factor must be in (0, 1), got 1"),
        ("model.tied=1", "--set: model.tied must be true or false, got 1"),
        ("model.cell=lsmt", "--set: model.cell must be one of lstm, gru, got 'lsmt'; did you mean 'lstm'?"),
        ("model.cell=3", "--set: model.cell must be one of lstm, gru, got '3'"),
        ("train.steps=[1]", "--set: train.steps must be a whole number, got [1]"),
        ("train.steps=1\ntrain.lr=2", "--set: train.steps must be a whole number, got '1\\ntrain.lr=2'"),
        ("data.name=\udc80", "--set: data.name must be text without NUL or undecodable bytes, got '\\udc80'"),
        ("train.learning=1", "--set: unknown key 'train.learning'"),
        ("train.step=1", "--set: unknown key 'train.step'; did you mean 'train.steps'?"),
        ("train.gamma=1", "--set: unknown key 'train.gamma'; did you mean 'smoothing.gamma'?"),
        ("lr=1", "--set: unknown key 'lr'; did you mean 'train.lr'?"),
        ("train.learning_rate=1", "--set: unknown key 'train.learning_rate'; did you mean 'train.lr'?"),
        ("batch_size=1", "--set: unknown key 'batch_size'; did you mean 'train.batch'?"),
        ("trian.lr=1", "--set: unknown key 'trian.lr'; did you mean 'train.lr'?"),
        ("evalute.batch=1", "--set: unknown key 'evalute.batch'; did you mean 'evaluate.batch'?"),
        (".name=1", "--set: unknown key '.name'; did you mean 'data.name'?"),
        ("trian=1", "--set: unknown key 'trian'; did you mean 'train'?"),
        ("name.lr=1", "--set: unknown key 'name.lr'; did you mean 'train.lr'?"),
        ("train=1", "--set: train is a section with keys such as train.steps, got 1"),
        ("train.lr", "--set takes section.key=value, such as train.lr=0.004; got 'train.lr'"),
        ("=1", "--set takes section.key=value, such as train.lr=0.004; got '=1'"),
        (" =1", "--set takes section.key=value, such as train.lr=0.004; got ' =1'"),
        ("train={steps=3}", "--set: train is a section with keys such as train.steps, got {'steps': 3}"),
    ],
)
def test_refusals(setting: str, message: str) -> None:
    assert refusal(setting).startswith(message)


def test_of_several_settings_the_one_at_fault_is_named() -> None:
    assert refusal("train.steps=abc", "train.steps=2") == "--set: train.steps must be a whole number, got 'abc'"
    assert refusal("train=5", "train.steps=2") == "--set: train is a section with keys such as train.steps, got 5"
    assert refusal("train.steps=2", "trian.steps=3", "train.lr=fast").startswith("--set: unknown key 'trian.steps'")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            ["smoothing.output=target", "smoothing.granularity=element"],
            "smoothing.output=target needs smoothing.granularity=word",
        ),
        (["smoothing.tie=shared-draw"], "smoothing.tie=shared-draw needs smoothing.output=table, got none"),
        (
            ["smoothing.tie=shared-draw", "smoothing.output=table"],
            "smoothing.tie=shared-draw needs smoothing.scope=batch, got sequence",
        ),
        (["smoothing.tie=shared-draw", "model.tied=false"], "smoothing.tie=shared-draw needs model.tied=true, got false"),
        (["smoothing.method=noising"], "smoothing.method=noising needs smoothing.kl=plain, got exact"),
        (
            ["smoothing.method=noising", "smoothing.output=table", "smoothing.kl=plain"],
            "smoothing.method=noising needs smoothing.output=none, got table",
        ),
        (
            ["smoothing.method=noising", "smoothing.granularity=element", "smoothing.kl=plain"],
            "smoothing.method=noising needs smoothing.granularity=word, got element",
        ),
        (
            ["dropout.kind=activation", "dropout.tables_granularity=word"],
            "dropout.kind=activation needs dropout.tables_granularity=element, got word",
        ),
        (
            ["dropout.recurrent_kind=dropconnect", "dropout.recurrent_scope=sequence"],
            "dropout.recurrent_kind=dropconnect needs dropout.recurrent_scope=batch",
        ),
    ],
)
def test_values_that_do_not_go_together(choices: list[str], message: str) -> None:
    assert refusal(*choices).startswith(f"--set: {message}")


def test_values_given_in_python_are_checked_too() -> None:
    with pytest.raises(InputError, match=re.escape("smoothing.gamma must be in [0, 1], got nan")):
        Config(smoothing=SmoothingConfig(gamma=math.nan))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[train]\nlr = \n", "not valid TOML: Invalid value (at line 2, column 6)"),
        (b"[train]\nlr = '\xff'\n", "not UTF-8 at byte 14, in line 2"),
        (b"[train]\nlr = 0.1\nlrr = 1\n", "unknown key 'train.lrr'; did you mean 'train.lr'?"),
        (b"[[train]]\nlr = 0.1\n", "train is a section with keys such as train.steps, got [{'lr': 0.1}]"),
        (b"name = 3", "name must be a string, got 3"),
        (b"data = '" + b"a" * 200 + b"'", "data is a section with keys such as data.name, got 'aaa"),
        (b'[data]\nname = "\\u0000"', "data.name must be text without NUL or undecodable bytes"),
        (b"[train]\nlr = " + b"9" * 5000, "not valid TOML"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_config(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path, Path("nul\0.toml"), tmp_path / ("long" * 100)):
        with pytest.raises(InputError, match="cannot be read"):
            load_config(path)


def outcome(action: Callable[[], Config]) -> Config | str:
    """Return what ``action`` makes, or the message with which it refuses; any other exception is a failure."""
    try:
        return action()
    except InputError as error:
        return str(error)


@settings(deadline=None)
@given(st.text())
def test_any_text_loads_or_is_refused(text: str) -> None:
    result = outcome(lambda: config_from_mapping(parse_toml(text, "fuzz"), "fuzz"))
    assert isinstance(result, Config) or result.startswith("fuzz: ")


@settings(deadline=None)
@given(st.integers(0, len(to_toml(Config()))), st.integers(0, 20), st.text(max_size=20))
def test_any_damage_to_a_good_file_loads_or_is_refused(start: int, length: int, text: str) -> None:
    good = to_toml(Config())
    result = outcome(lambda: config_from_mapping(parse_toml(good[:start] + text + good[start + length :], "fuzz"), "fuzz"))
    assert isinstance(result, Config) or result.startswith("fuzz: ")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["name", *HINTS, "other"]), st.one_of(SCALARS, st.dictionaries(st.text(), SCALARS))))
def test_any_mapping_loads_or_is_refused(mapping: dict[str, Any]) -> None:
    result = outcome(lambda: config_from_mapping(mapping, "fuzz"))
    assert isinstance(result, Config) or result.startswith("fuzz: ")


@settings(deadline=None)
@given(st.sampled_from(KEYS), SCALARS)
def test_any_value_of_any_key_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    section, _, key = name.partition(".")
    result = outcome(lambda: config_from_mapping({section: {key: value}}, "fuzz"))
    assert name in result if isinstance(result, str) else getattr(getattr(result, section), key) == value


@settings(deadline=None)
@given(st.one_of(st.text(), st.builds("{}={}".format, st.sampled_from(KEYS), st.text())))
def test_any_setting_is_applied_or_refused(setting: str) -> None:
    result = outcome(lambda: override(Config(), [setting]))
    assert isinstance(result, Config) or result.startswith("--set")
