"""Configurations from TOML files, from nested mappings, and with single values put in place of others."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_origin

from varsmooth.config.checks import checked, shown
from varsmooth.config.sections import HINTS, SECTIONS, Config
from varsmooth.errors import InputError, nearest
from varsmooth.files import not_utf8


def load_config(path: Path | str) -> Config:
    """Read a configuration file, such as a run's ``config.toml``."""
    return config_from_mapping(read_toml(Path(path)), str(path))


def config_from_mapping(mapping: Mapping[str, Any], source: str) -> Config:
    """Build a configuration from nested mappings; what they leave out keeps its default. ``source`` opens every message."""
    try:
        sections = {key: _section(key, value) for key, value in mapping.items()}
        return Config(**sections)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def with_values(config: Config, values: Mapping[str, Any], source: str) -> Config:
    """Return the configuration with values put in place of its own, each under its dotted name, checked as a whole."""
    own: dict[str, dict[str, Any]] = {}
    try:
        for name, value in values.items():
            _hint(name, value)
            section, _, key = name.rpartition(".")
            own.setdefault(section, {})[key] = value
        sections = {section: replace(getattr(config, section), **own[section]) for section in own if section}
        return replace(config, **own.get("", {}), **sections)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def override(config: Config, settings: Iterable[str]) -> Config:
    """Apply ``section.key=value`` settings in turn, each checked on its own, and check the result as a whole."""
    values = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not name:
            raise InputError(f"--set takes section.key=value, such as train.lr=0.004; got {shown(setting)}")
        try:
            hint = _hint(name, _scalar(text, is_text=False))
            values[name] = checked(name, _scalar(text, is_text=hint is str or get_origin(hint) is Literal), hint)
        except InputError as error:
            raise InputError(f"--set: {error}") from None
    return with_values(config, values, "--set")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with a message that names the file where it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML text; ``source`` names it in messages."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid TOML: {error}") from None


def _hint(name: str, value: Any) -> Any:
    """Return the type of the key ``name`` that is to be set to ``value``, or refuse what is no key."""
    if name == "name":
        return str
    if name in SECTIONS:
        raise InputError(_no_key(name, value))
    section, _, key = name.rpartition(".")
    if key not in HINTS.get(section, {}):
        raise InputError(unknown_key(name))
    return HINTS[section][key]


def _no_key(section: str, value: Any) -> str:
    return f"{section} is a section with keys such as {section}.{next(iter(HINTS[section]))}, got {shown(value)}"


def _section(key: str, value: Any) -> Any:
    """Return what ``Config`` takes for the top-level ``key`` of a file."""
    if key == "name":
        return value
    if key not in SECTIONS:
        raise InputError(unknown_key(key))
    if not isinstance(value, Mapping):
        raise InputError(_no_key(key, value))
    for name in value:
        if name not in HINTS[key]:
            raise InputError(unknown_key(f"{key}.{name}"))
    return SECTIONS[key](**value)


OTHER_NAMES = {
    "learning_rate": "train.lr",
    "weight_decay": "train.l2",
    "warmup": "train.warm_up",
    "warmup_steps": "train.warm_up",
    "max_steps": "train.steps",
    "batch_size": "train.batch",
    "bptt": "train.window",
    "seq_len": "train.window",
    "clip_norm": "train.clip",
    "grad_clip": "train.clip",
    "hidden_size": "model.hidden",
    "num_layers": "model.layers",
    "n_layers": "model.layers",
    "vocab_size": "data.max_words",
    "discount": "smoothing.gamma",
}
"""What others call our keys."""


def unknown_key(name: str) -> str:
    """Return a message on an unknown key: the same key in another section is the best hint, else the nearest name."""
    known = ["name", *SECTIONS, *(f"{section}.{key}" for section, keys in HINTS.items() for key in keys)]
    known = [each for each in known if each != name]
    last = name.rpartition(".")[2]
    same = [candidate for candidate in known if candidate.rpartition(".")[2] == last and "." in candidate]
    same = same or [ours for theirs, ours in OTHER_NAMES.items() if theirs == last]
    hint = (nearest(name, same) or f"; did you mean {same[0]!r}?") if same else nearest(name, known)
    return f"unknown key {shown(name)}{hint}"


def _scalar(text: str, *, is_text: bool) -> Any:
    """Parse the value of a setting as TOML; a bare word is a string, and so is anything where a string is wanted."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and (isinstance(value, str) or not is_text) else text
