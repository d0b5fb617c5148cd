"""Recipes: named configurations, each a few lines of TOML over another one.

A packaged recipe is a ROW of the results table, or ROW/SETTING: the row on a given data set and at a given size.
Beside configuration keys a recipe may have ``base``, the recipe it changes, and ``about``, what it is in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from varsmooth.config import Config, config_from_mapping, parse_toml, read_toml
from varsmooth.errors import InputError, nearest

ROWS, SETTINGS = "rows", "settings"

Layer: TypeAlias = tuple[str, dict[str, Any]]
"""Where a mapping came from, and the mapping."""


def recipe_names() -> list[str]:
    """Return every packaged recipe: the rows, then each row in each setting."""
    rows = _packaged(ROWS)
    return rows + [f"{row}/{setting}" for row in rows for setting in _packaged(SETTINGS)]


def described_rows() -> dict[str, str]:
    """Return what each packaged row is."""
    return {name: str(_read_packaged(ROWS, name)[1]["about"]) for name in _packaged(ROWS)}


def described_settings() -> dict[str, str]:
    """Return what each packaged setting is."""
    return {name: str(_read_packaged(SETTINGS, name)[1]["about"]) for name in _packaged(SETTINGS)}


def load_recipe(name_or_path: str | Path) -> Config:
    """Load a packaged recipe by its name, or a user's own from a path that ends in ``.toml``."""
    recipe = str(name_or_path)
    return _loaded(recipe) if _is_file(recipe) else _loaded_once(recipe)


@cache
def _loaded_once(name: str) -> Config:
    return _loaded(name)


def _loaded(recipe: str) -> Config:
    layers = _layers(recipe, Path(), [])
    merged: dict[str, Any] = {}
    for source, mapping in layers:
        if not isinstance(mapping.pop("about", ""), str):
            raise InputError(f"{source}: about must be text, in quotes")
        merged = _over(merged, mapping)
    own_name = layers[-1][1].get("name", Path(recipe).stem if _is_file(recipe) else recipe)
    return config_from_mapping({**merged, "name": own_name}, " over ".join(source for source, _ in reversed(layers)))


def _layers(recipe: str, folder: Path, above: list[str]) -> list[Layer]:
    """Return what makes up ``recipe``, the most basic first; ``above`` are the recipes that led here."""
    if not _is_file(recipe):
        return _packaged_layers(recipe, above)
    path = folder / recipe
    layer = str(path), read_toml(path)
    return [*_base_layers(layer, path.parent, str(path.resolve()), above), layer]


def _packaged_layers(name: str, above: list[str]) -> list[Layer]:
    """The setting comes below the row, so that what defines the row (word dropout's rate, say) wins."""
    if name not in recipe_names():
        hint = nearest(name, recipe_names()) or f"; the rows are {', '.join(_packaged(ROWS))}; a file must end in .toml"
        raise InputError(f"unknown recipe {name!r}{hint}")
    row, _, setting = name.partition("/")
    settings = [_read_packaged(SETTINGS, setting)] if setting else []
    layer = _read_packaged(ROWS, row)
    return [*settings, *_base_layers(layer, Path(), row, above), layer]


def _base_layers(layer: Layer, folder: Path, identity: str, above: list[str]) -> list[Layer]:
    """Take ``base`` out of the layer's mapping and return its layers."""
    source, mapping = layer
    if identity in above:
        raise InputError(f"{source} leads back to itself through base")
    base = mapping.pop("base", None)
    if base is None:
        return []
    if not isinstance(base, str):
        raise InputError(f"{source}: base must be a recipe's name or the path of a .toml file, in quotes")
    try:
        return _layers(base, folder, [*above, identity])
    except InputError as error:
        raise InputError(f"{source}: base: {error}") from None


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``lower`` with the keys of ``upper`` put over it, section by section."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _is_file(recipe: str) -> bool:
    return recipe.endswith(".toml")


def _packaged(kind: str) -> list[str]:
    folder = files("varsmooth").joinpath("recipes", kind)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if _is_file(entry.name))


def _read_packaged(kind: str, name: str) -> Layer:
    return name, parse_toml(files("varsmooth").joinpath("recipes", kind, f"{name}.toml").read_text("utf-8"), name)
