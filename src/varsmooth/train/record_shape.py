"""What the parts of a record are, so that whoever reads one can rely on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from varsmooth.errors import InputError

WHOLE, NUMBER, TEXT, BOOLEAN, LIST, OBJECT = "a whole number", "a number", "text", "true or false", "a list", "an object"
KINDS: dict[str, tuple[type, ...]] = {
    WHOLE: (int,),
    NUMBER: (int, float),
    TEXT: (str,),
    BOOLEAN: (bool,),
    LIST: (list,),
    OBJECT: (dict,),
}
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
    "trained": OBJECT,
    "trained.steps": WHOLE,
    "trained.seconds": NUMBER,
    "ms_per_step": NUMBER,
    "results": LIST,
    "versions": OBJECT,
    "hardware": OBJECT,
}
OF_FINISHED = ("best.step", "results")
"""What a run that has finished must say."""
RESULT_SHAPE = {
    "split": TEXT,
    "predict": TEXT,
    "tuned_temperature": BOOLEAN,
    "perplexity": NUMBER,
    "nll": NUMBER,
    "temperature": NUMBER,
    "scaled": OBJECT,
    "scaled.context": NUMBER,
    "scaled.bias": NUMBER,
    "scaled.perplexity": NUMBER,
}
LINE_SHAPE = {"step": WHOLE, "valid_perplexity": NUMBER}
"""Of a line of metrics; what else it has is for people."""
OF_LINE = ("step",)
OF_RESULT = ("split", "predict", "tuned_temperature")


def check_shape(record: Mapping[str, Any], path: Path, required: tuple[str, ...] = ()) -> None:
    """Refuse a record in which something is not what it should be; ``required`` names what it must have in any case."""
    needed = (*required, *OF_FINISHED) if record.get("status") == "finished" else required
    _check(record, SHAPE, needed, f"{path}: ")
    for number, entry in enumerate(record.get("results") or [], start=1):
        if not isinstance(entry, dict):
            raise InputError(f"{path}: every entry of results must be an object, got {entry!r:.80}")
        _check(entry, RESULT_SHAPE, OF_RESULT, f"{path}, result {number}: ")


def check_line(metrics: Mapping[str, Any], where: str) -> None:
    """Refuse a line of metrics in which something is not what it should be."""
    _check(metrics, LINE_SHAPE, OF_LINE, f"{where}: ")


def _check(found: Mapping[str, Any], shape: Mapping[str, str], needed: Sequence[str], where: str) -> None:
    for name, wanted in shape.items():
        value = _at(found, name)
        # Of a number, null says that it was beyond all numbers; of the rest, that there is none yet.
        if value is None and name not in needed:
            continue
        if not isinstance(value, KINDS[wanted]) or (isinstance(value, bool) and wanted != BOOLEAN):
            raise InputError(f"{where}{name} must be {wanted}, got {value!r:.80}")


def _at(record: Mapping[str, Any], name: str) -> Any:
    value: Any = record
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
