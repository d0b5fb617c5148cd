"""What the parts of a record are, so that whoever reads one can rely on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError

WHOLE, NUMBER, TEXT, OBJECT = "a whole number", "a number", "text", "an object"
KINDS: dict[str, tuple[type, ...]] = {WHOLE: (int,), NUMBER: (int, float), TEXT: (str,), OBJECT: (dict,), "a list": (list,)}
SHAPE = {
    "recipe": TEXT,
    "status": TEXT,
    "seed": WHOLE,
    "parameters": WHOLE,
    "data": OBJECT,
    "data.checksums": OBJECT,
    "data.tokens": OBJECT,
    "config": OBJECT,
    "best": OBJECT,
    "best.step": WHOLE,
    "best.valid_perplexity": NUMBER,
    "steps": WHOLE,
    "seconds": NUMBER,
    "results": "a list",
    "versions": OBJECT,
    "hardware": OBJECT,
}
OF_FINISHED = ("best.step", "results")
"""What a run that has finished must say."""


def check_shape(record: Mapping[str, Any], path: Path, required: tuple[str, ...] = ()) -> None:
    """Refuse a record in which something is not what it should be; ``required`` names what it must have in any case."""
    needed = (*required, *OF_FINISHED) if record.get("status") == "finished" else required
    for name, wanted in SHAPE.items():
        value = _at(record, name)
        # Of a number, null says that it was beyond all numbers; of the rest, that there is none yet.
        if value is None and name not in needed:
            continue
        if not isinstance(value, KINDS[wanted]) or isinstance(value, bool):
            raise InputError(f"{path}: {name} must be {wanted}, got {value!r:.80}")
    for entry in record.get("results") or []:
        if not isinstance(entry, dict):
            raise InputError(f"{path}: every entry of results must be an object, got {entry!r:.80}")


def _at(record: Mapping[str, Any], name: str) -> Any:
    value: Any = record
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
