"""Configurations as nested mappings, as TOML text and as a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from varsmooth.config.sections import Config

WHERE_AND_HOW = frozenset({"data.name", "data.data_dir", "train.device", "train.engine", "train.threads", "train.save_every"})
"""Settings that say where and how a run is made, and not what it is; its data are known by their checksums."""


def to_mapping(config: Config) -> dict[str, Any]:
    """Return the configuration as nested dictionaries, in the order of the file."""
    return asdict(config)


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flat_config(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def to_toml(config: Config, comments: Mapping[str, str] | None = None) -> str:
    """Return the configuration as TOML text that ``load_config`` reads back as an equal one.

    ``comments`` has what to say behind each ``section.key``, in one line.
    """
    comments = comments or {}
    mapping = to_mapping(config)
    lines = [_line("name", mapping.pop("name"), comments.get("name"))]
    for section, values in mapping.items():
        lines += ["", f"[{section}]"]
        lines += [_line(key, value, comments.get(f"{section}.{key}")) for key, value in values.items()]
    return "\n".join(lines) + "\n"


def config_checksum(config: Config) -> str:
    """Return the SHA-256 of every value in the configuration."""
    return hashlib.sha256(json.dumps(to_mapping(config), sort_keys=True).encode()).hexdigest()


def _line(key: str, value: str | bool | int | float, comment: str | None) -> str:
    line = f"{key} = {literal(value)}"
    return f"{line:<32}  # {comment}" if comment else line


def literal(value: str | bool | int | float) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
