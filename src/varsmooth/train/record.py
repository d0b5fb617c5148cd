"""What the record of a run says: its results, by what it predicts, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from varsmooth.config import config_from_mapping, flat_config, to_mapping
from varsmooth.errors import InputError
from varsmooth.train.folder import RunFolder

Record: TypeAlias = dict[str, Any]


def record_or_empty(folder: RunFolder) -> Record:
    """Return the record of a run, an empty one where none has been written yet; one that is damaged is refused."""
    return folder.read_record() if folder.record_path.exists() else {}


def readable_record(path: Path) -> Record:
    """Return the record in a run's folder, an empty one where there is none that can be read."""
    try:
        return RunFolder(path).read_record()
    except InputError:
        return {}


def result_of(record: Mapping[str, Any], split: str, predict: str | None = None, *, tuned: bool = False) -> Record | None:
    """Return a record's result by a prediction, the recipe's own unless told, at temperature 1 or at the tuned one."""
    wanted = (split, predict or own_prediction(record), tuned)
    results: list[Record] = record.get("results") or []
    for result in results:
        if (result.get("split"), result.get("predict"), result.get("tuned_temperature")) == wanted:
            return result
    return None


def own_prediction(record: Mapping[str, Any]) -> str:
    """Return the prediction of a record's recipe."""
    return str((record.get("config") or {}).get("smoothing", {}).get("predict", "mode"))


def full_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's settings under dotted names; those that it is too old to know have their defaults."""
    return flat_config(to_mapping(config_from_mapping(config, "the record")))
