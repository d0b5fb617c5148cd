"""Run folders as a report reads them, and which of them differ only by their seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from varsmooth.config import WHERE_AND_HOW, flat_config
from varsmooth.errors import InputError
from varsmooth.train.folder import RunFolder
from varsmooth.train.folder_lock import is_held
from varsmooth.train.record import full_config

REQUIRED = ("recipe", "status", "seed")
NOT_COMPARED = WHERE_AND_HOW | {"name", "train.seed"}
"""Settings in which runs of one group may differ; the recipe is known by the record."""


@dataclass(frozen=True)
class RunSummary:
    """What one run folder says of itself."""

    path: Path
    recipe: str
    seed: int
    status: str
    record: dict[str, Any]
    metrics: list[dict[str, Any]] = field(repr=False)

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def best_valid(self) -> float | None:
        """The lowest development perplexity, or None before the first evaluation."""
        value = (self.record.get("best") or {}).get("valid_perplexity")
        return None if value is None else float(value)

    @property
    def results(self) -> list[dict[str, Any]]:
        return self.record.get("results") or []

    @property
    def data_name(self) -> str:
        """The data set's name; of a folder, its last part."""
        name = str((self.record.get("data") or {}).get("name") or "unknown data")
        return printable(Path(name).name or name)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Steps and development perplexities, where these are finite."""
        pairs = [(line["step"], line.get("valid_perplexity")) for line in self.metrics]
        return [(step, float(value)) for step, value in pairs if value is not None and math.isfinite(value)]


@dataclass(frozen=True)
class RunGroup:
    """Runs of one recipe, configuration and data set, by seed; ``label`` tells groups of one recipe apart."""

    label: str
    data: str
    runs: tuple[RunSummary, ...]


def load_run(path: Path | str) -> RunSummary:
    """Read ``record.json`` and ``metrics.jsonl`` of a run folder; a run that was never evaluated has no metrics."""
    path = Path(path)
    try:
        if not path.is_dir():
            raise InputError(f"{path}: not a run folder; give a folder that 'varsmooth train --out' wrote")
        folder = RunFolder(path)
        if not folder.record_path.is_file():
            raise InputError(f"{path}: not a run folder (it has no {folder.record_path.name})")
        record, metrics = folder.read_record(REQUIRED), folder.read_metrics()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    for number, result in enumerate(record.get("results") or [], start=1):
        if "perplexity" not in result:
            raise InputError(f"{folder.record_path}, result {number}: perplexity is missing")
        if result["perplexity"] is None:
            result["perplexity"] = math.inf  # as which JSON has nothing else
    # A process that was killed could not say so.
    status = "stopped" if record["status"] == "running" and not is_held(path) else printable(record["status"])
    return RunSummary(path, printable(record["recipe"]), record["seed"], status, record, metrics)


def runs_in(path: Path | str) -> list[Path]:
    """Return ``path``, or all run folders below it where it is not a run itself but a fleet's folder, say."""
    path = Path(path)
    try:
        if _is_run(path) or not path.is_dir():
            return [path]
        found = sorted(_runs_below(path, set()))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not found:
        raise InputError(f"{path}: not a run folder (it has no record.json), and it holds none")
    return found


def _is_run(path: Path) -> bool:
    return RunFolder(path).record_path.exists()


def _runs_below(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield run folders at any depth, not those inside another run; links are followed, round in circles never."""
    for entry in folder.iterdir():
        if not entry.is_dir() or entry.resolve() in seen:
            continue
        seen.add(entry.resolve())
        if _is_run(entry):
            yield entry
        else:
            yield from _runs_below(entry, seen)


def group_runs(runs: Iterable[RunSummary]) -> list[RunGroup]:
    """Gather runs that differ only by their seed, in the order in which they come; a folder that comes twice counts once."""
    groups: dict[str, list[RunSummary]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        groups.setdefault(_identity(run), []).append(run)
    members = [tuple(sorted(group, key=lambda run: run.seed)) for group in groups.values()]
    firsts = [group[0] for group in members]
    return [RunGroup(_label(group[0], firsts), _data_label(group[0], firsts), group) for group in members]


def compared_config(run: RunSummary) -> dict[str, Any]:
    """Return the settings in which runs of one group must be alike; as they are, where they are of another version."""
    config = run.record.get("config") or {}
    try:
        flat = full_config(config)
    except InputError:
        flat = flat_config(config)
    return {key: value for key, value in flat.items() if key not in NOT_COMPARED}


def printable(text: str) -> str:
    """Return text that is safe on a terminal and in a file: one line, no control characters, no lone surrogates."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _fingerprint(run: RunSummary) -> list[Any]:
    return [run.data_name, _checksums(run)]


def _identity(run: RunSummary) -> str:
    return json.dumps([run.recipe, _fingerprint(run), compared_config(run)], sort_keys=True)


def _label(run: RunSummary, others: Sequence[RunSummary]) -> str:
    """The recipe, and the settings in which it differs from other groups of that recipe."""
    mine = compared_config(run)
    namesakes = [compared_config(other) for other in others if other.recipe == run.recipe]
    names = sorted({name for settings in namesakes for name in settings})
    differing = [name for name in names if any(settings.get(name) != mine.get(name) for settings in namesakes)]
    changes = ", ".join(f"{name}={mine.get(name)}" for name in differing)
    return printable(f"{run.recipe} ({changes})") if changes else run.recipe


def _data_label(run: RunSummary, others: Sequence[RunSummary]) -> str:
    """The data set's name, with the start of the first checksum that tells it from another copy of the same name."""
    mine = _checksums(run)
    copies = [_checksums(other) for other in others if other.data_name == run.data_name]
    names = dict.fromkeys(name for copy in (mine, *copies) for name in copy)
    differing = [name for name in names if any(copy.get(name) != mine.get(name) for copy in copies)]
    return f"{run.data_name} {printable(str(mine.get(differing[0])))[:8]}" if differing else run.data_name


def _checksums(run: RunSummary) -> dict[str, Any]:
    data = run.record.get("data") or {}
    return {"vocabulary": data.get("vocab_checksum"), **(data.get("checksums") or {})}
