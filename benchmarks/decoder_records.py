"""What decoder.py keeps: which trials an arm has, which of them was best, and all of it as tables."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Record: TypeAlias = dict[str, Any]
ARMS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "dropout": None,
    "word": {"granularity": "word", "output": "target"},
    "element": {"granularity": "element", "output": "table"},
}
"""Arms, and what is smoothed in them."""
COLUMNS = (("valid", False), ("valid", True), ("test", False), ("test", True))
"""Splits, and whether at the temperature that is best on valid."""


class Trial(NamedTuple):
    """What an arm may choose."""

    dropout: float
    gamma: float | None = None

    @property
    def name(self) -> str:
        return f"{self.dropout:g}" if self.gamma is None else f"{self.dropout:g}-{self.gamma:g}"

    @property
    def cells(self) -> str:
        return f"{self.dropout:g} | {'-' if self.gamma is None else format(self.gamma, 'g')}"


SMOOTHED = (Trial(0.1, 0.1), Trial(0.2, 0.1), Trial(0.3, 0.2))
DROPPED = tuple(Trial(each.dropout) for each in SMOOTHED)
FOURTH = {"ptb": 0.15, "wikitext-2": 0.05}
"""A dropout tried after those: between the best two on ptb, below the smallest, which was the best, on wikitext-2."""


def trials_of(data: str, arm: str) -> tuple[Trial, ...]:
    """Return what an arm may choose from on a data set; all arms but the plain one have as many."""
    if arm == "plain":
        return (Trial(0.0),)
    trials, gamma = (DROPPED, None) if arm == "dropout" else (SMOOTHED, SMOOTHED[0].gamma)
    more = (Trial(FOURTH[data], gamma),) if data in FOURTH else ()
    return tuple(sorted((*trials, *more), key=lambda trial: trial.dropout))


def path_of(folder: Path, data: str, arm: str, trial: Trial, seed: int) -> Path:
    return folder / f"{data}-{arm}-{trial.name}-{seed}.json"


def perplexity(record: Record, predict: str, split: str, tuned: bool) -> float:
    wanted = (predict, split, tuned)
    found = (r["perplexity"] for r in record["results"] if (r["predict"], r["split"], r["tuned_temperature"]) == wanted)
    return float(next(found))


def own(record: Record, split: str) -> float:
    """Return the perplexity by the arm's own prediction, the mean where tables are drawn, at its tuned temperature."""
    return perplexity(record, "mode" if record["config"]["smoothing"] is None else "mean", split, True)


def chosen(folder: Path, data: str, arm: str, seed: int) -> Trial | None:
    """Return the trial that is best on the development set; None where one is missing."""
    found = {trial: _read(path_of(folder, data, arm, trial, seed)) for trial in trials_of(data, arm)}
    valid = {trial: own(record, "valid") for trial, record in found.items() if record is not None}
    return min(valid, key=valid.__getitem__) if len(valid) == len(found) else None


def table(folder: Path, seeds: list[int]) -> str:
    """Return perplexities over seeds of each arm's choice, and the trials that it was chosen from, as Markdown."""
    titles = " | ".join(f"{split}, tuned" if tuned else split for split, tuned in COLUMNS)
    means = [
        f"| data | arm | dropout | gamma | predicted by | seeds | {titles} |",
        f"|---|---|---:|---:|---|---:|{'---:|' * 4}",
    ]
    trials = ["| data | arm | dropout | gamma | valid, tuned |", "|---|---|---:|---:|---:|"]
    for data in sorted({path.name.rpartition("-plain-0-")[0] for path in folder.glob("*-plain-0-*.json")}):
        for arm in ARMS:
            of_arm = trials_of(data, arm)
            best = chosen(folder, data, arm, seeds[0])
            if best is not None:
                runs = [_read(path_of(folder, data, arm, best, seed)) for seed in seeds]
                row = f"| {data} | {arm} | {best.cells} |"
                means += [f"{row} {line}" for line in _predictions([run for run in runs if run is not None])]
            for trial in of_arm if len(of_arm) > 1 else ():
                record, mark = _read(path_of(folder, data, arm, trial, seeds[0])), "**" if trial == best else ""
                figure = "-" if record is None else f"{mark}{own(record, 'valid'):.2f}{mark}"
                trials.append(f"| {data} | {arm} | {trial.cells} | {figure} |")
    return "\n".join([*means, "", *trials])


def _predictions(runs: list[Record]) -> list[str]:
    """Return the rest of a row for each way to predict."""
    lines = []
    for predict in sorted({result["predict"] for result in runs[0]["results"]}):
        cells = (_spread([perplexity(run, predict, split, tuned) for run in runs]) for split, tuned in COLUMNS)
        lines.append(f"{predict} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def _spread(values: list[float]) -> str:
    spread = f" ±{statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def _read(path: Path) -> Record | None:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
