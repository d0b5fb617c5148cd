"""Whether a run was trained as its trial asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varsmooth.config import WHERE_AND_HOW, Config, flat_config, to_mapping
from varsmooth.errors import InputError


def refuse_other_settings(run: Path, found: Mapping[str, Any], wanted: Config, fix: str = "") -> None:
    """Refuse a run whose configuration, as a mapping of sections, is not the one that was asked for."""
    theirs = flat_config(found)
    for key, value in flat_config(to_mapping(wanted)).items():
        own = theirs.get(key, value)
        if own != value and key != "name" and key not in WHERE_AND_HOW:
            raise InputError(f"{run}: was trained with {key} = {own!r}; the trial asked for {value!r}{fix}")
