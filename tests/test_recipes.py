from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.config import Config, config_checksum, config_from_mapping, override, parse_toml, to_mapping, to_toml
from varsmooth.errors import InputError
from varsmooth.recipe import described_rows, described_settings, load_recipe, recipe_names

SCHEMES = ("blank", "linear-interpolation", "absolute-discounting", "kneser-ney")
ROWS = {
    "vanilla",
    "vanilla-untied",
    "word-dropout",
    *(f"noising-{scheme}" for scheme in SCHEMES),
    *(f"smoothing-{scheme}" for scheme in SCHEMES),
    "element-kneser-ney",
    "element-linear-interpolation",
}
SETTINGS = {"ptb-512", "ptb-1024", "wikitext-2-512", "wikitext-2-1024", "small", "demo"}


def refusal(recipe: str | Path) -> str:
    with pytest.raises(InputError) as error:
        load_recipe(recipe)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_row_in_every_setting_is_a_recipe() -> None:
    assert len(ROWS) == 13
    assert len(recipe_names()) == 13 + 13 * 6
    assert set(recipe_names()) == ROWS | {f"{row}/{setting}" for row in ROWS for setting in SETTINGS}


def test_recipes_differ_from_one_another_and_carry_their_names() -> None:
    recipes = [load_recipe(name) for name in recipe_names()]
    assert [recipe.name for recipe in recipes] == recipe_names()
    assert len({config_checksum(override(recipe, ["name="])) for recipe in recipes}) == len(recipes)


def test_every_row_and_setting_says_what_it_is() -> None:
    told = described_rows() | described_settings()
    assert set(told) == ROWS | SETTINGS
    assert len(set(told.values())) == len(told)
    assert all(20 < len(about) < 110 and "\n" not in about for about in told.values())
    for name, about in described_settings().items():
        config = load_recipe(f"vanilla/{name}")
        assert f"{config.model.hidden:,} units" in about
        assert name == "demo" or f"{config.train.steps:,} steps" in about
        assert name in ("demo", "small") or f"table dropout {config.dropout.tables}, " in about


def test_each_recipe_is_a_few_lines() -> None:
    folder = files("varsmooth").joinpath("recipes")
    texts = [file.read_text("utf-8") for kind in ("rows", "settings") for file in folder.joinpath(kind).iterdir()]
    assert len(texts) == 13 + 6
    assert max(len(text.splitlines()) for text in texts) <= 20


@pytest.mark.parametrize("name", sorted(ROWS))
def test_rows_say_what_they_are(name: str) -> None:
    config = load_recipe(name)
    kind, _, scheme = name.partition("-")
    method = {"noising": "noising", "smoothing": "variational", "element": "variational"}.get(kind, "none")
    assert config.smoothing.method == method
    assert config.smoothing.predict == ("mean" if method == "variational" else "mode")
    if method != "none":
        assert config.smoothing.scheme == scheme
        assert config.smoothing.gamma == (0.1 if scheme in ("blank", "linear-interpolation") else 0.2)
    assert config.model.tied == (name != "vanilla-untied")
    assert config.model.hidden == 512
    assert config.data == Config().data


def test_output_sides() -> None:
    outputs = {name: load_recipe(name).smoothing.output for name in ROWS}
    assert {name for name, output in outputs.items() if output == "table"} == {name for name in ROWS if "element" in name}
    assert {name for name, output in outputs.items() if output == "target"} == {"smoothing-kneser-ney"}


def test_element_rows_choose_per_dimension_and_all_rows_share_the_scope() -> None:
    for name in ROWS:
        smoothing = load_recipe(name).smoothing
        assert smoothing.granularity == ("element" if "element" in name else "word")
        assert smoothing.scope == "sequence", "with gamma 0 every row is vanilla, its dropout included"


def test_vanilla_is_the_default_configuration() -> None:
    assert to_mapping(load_recipe("vanilla")) == {**to_mapping(Config()), "name": "vanilla"}


def test_settings_choose_data_size_and_dropout_but_never_undo_the_row() -> None:
    for row in ROWS:
        for data in ("ptb", "wikitext-2"):
            for hidden, dropout in ((512, 0.5), (1024, 0.7)):
                config = load_recipe(f"{row}/{data}-{hidden}")
                assert (config.data.name, config.model.hidden) == (data, hidden)
                assert config.dropout.tables == (0.2 if row == "word-dropout" else dropout)
                assert config.smoothing == load_recipe(row).smoothing
    assert load_recipe("word-dropout/small").dropout.tables_granularity == "word"
    assert load_recipe("vanilla/small").model.hidden == 64


@pytest.mark.parametrize("name", ["vanilla", "element-kneser-ney/wikitext-2-1024"])
def test_a_recipe_survives_being_written_as_toml(name: str) -> None:
    config = load_recipe(name)
    assert config_from_mapping(parse_toml(to_toml(config), name), name) == config


def test_own_recipe_over_a_packaged_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "smoothing-kneser-ney/ptb-1024"\n[smoothing]\ngamma = 0.3\n')
    expected = override(load_recipe("smoothing-kneser-ney/ptb-1024"), ["smoothing.gamma=0.3", "name=mine"])
    assert load_recipe(path) == load_recipe(str(path)) == expected


def test_own_recipe_may_say_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('about = "mine"\nbase = "vanilla"\n')
    assert load_recipe(tmp_path / "mine.toml") == override(load_recipe("vanilla"), ["name=mine"])


def test_own_recipe_over_another_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "lower.toml").write_text('name = "lower"\nbase = "vanilla"\n[train]\nlr = 0.1\nsteps = 5\n')
    (tmp_path / "upper.toml").write_text('base = "lower.toml"\n[train]\nlr = 0.2\n')
    config = load_recipe(tmp_path / "upper.toml")
    assert (config.name, config.train.lr, config.train.steps) == ("upper", 0.2, 5)
    assert load_recipe(tmp_path / "lower.toml").name == "lower"


def test_without_a_base_the_defaults_are_the_base(tmp_path: Path) -> None:
    (tmp_path / "alone.toml").write_text("")
    assert load_recipe(tmp_path / "alone.toml") == Config(name="alone")


def test_circles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.toml").write_text('base = "inner/b.toml"')
    (tmp_path / "inner" / "b.toml").write_text('base = "../a.toml"')
    (tmp_path / "self.toml").write_text('base = "self.toml"')
    assert "leads back to itself through base" in refusal(tmp_path / "a.toml")
    assert "leads back to itself through base" in refusal(tmp_path / "self.toml")


def test_unknown_recipes_get_the_nearest_name() -> None:
    assert refusal("vanila") == "unknown recipe 'vanila'; did you mean 'vanilla'?"
    assert refusal("smoothing-kneserney/ptb-512").endswith("did you mean 'smoothing-kneser-ney/ptb-512'?")
    assert "the rows are element-kneser-ney, " in refusal("???")
    assert "must end in .toml" in refusal("")
    assert refusal("vanilla/").startswith("unknown recipe 'vanilla/'")
    assert refusal("../rows/vanilla").startswith("unknown recipe")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('base = "vanila"', ": base: unknown recipe 'vanila'; did you mean 'vanilla'?"),
        ('base = "absent.toml"', ": base: "),
        ("base = 3", ": base must be a recipe's name"),
        ("about = 3", ": about must be text"),
        ('base = "vanilla"\n[train]\nlrr = 1', " over vanilla: unknown key 'train.lrr'; did you mean 'train.lr'?"),
        ("train = 1", ": train is a section"),
        ('base = "vanilla"\nsmoothing = 1', " over vanilla: smoothing is a section"),
    ],
)
def test_bad_recipes_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    assert refusal(path).startswith(f"{path}{message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.toml").startswith(f"{tmp_path / 'absent.toml'}: cannot be read: ")


@settings(deadline=None)
@given(st.one_of(st.text(), st.text().map("{}.toml".format)))
def test_any_name_loads_or_is_refused(name: str) -> None:
    try:
        load_recipe(name)
    except InputError:
        pass
    else:
        assert name in recipe_names()
