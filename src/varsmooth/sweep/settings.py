"""Whether a run was trained as its trial asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varsmooth.config import Config, to_mapping
from varsmooth.errors import InputError

FREE = ("data.name", "data.data_dir", "train.device", "train.engine", "train.threads", "train.save_every")
"""What may differ where a trial is trained: it changes where and how, and not what."""


def refuse_other_settings(run: Path, found: Mapping[str, Any], wanted: Config, fix: str = "") -> None:
    """Refuse a run whose configuration, as a mapping of sections, is not the one that was asked for."""
    for section, values in to_mapping(wanted).items():
        if section == "name":
            continue
        for key, value in values.items():
            theirs = (found.get(section) or {}).get(key, value)
            if theirs != value and f"{section}.{key}" not in FREE:
                raise InputError(f"{run}: was trained with {section}.{key} = {theirs!r}; the trial asked for {value!r}{fix}")
