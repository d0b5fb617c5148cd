"""The paper's grid on a short schedule, and whether its ranking holds on a long one: perplexities, seconds, rank correlation.

Trains every point of a packaged grid (3 learning rates x 2 lambdas x 4 gammas for Kneser-Ney smoothing at 512 on PTB) as
one fleet, then some of its configurations, spread over the ranking, for longer. It needs no Optuna: a grid's points are known
beforehand, and `varsmooth sweep` would train the same runs through the same fleet. Stopped, the same command goes on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import numpy as np
from cyclopts import Parameter
from rich.console import Console

from varsmooth.config import with_values
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting, corpus_of
from varsmooth.files import write_atomically
from varsmooth.fleet import TimeLimit, Trial, is_fleet, number_at_once, resume_fleet, start_fleet
from varsmooth.sweep import Arm, load_study
from varsmooth.sweep.outcomes import refuse_other_settings
from varsmooth.sweep.space import grid
from varsmooth.train.build import resolve_device
from varsmooth.train.environment import environment
from varsmooth.train.folder import RunFolder

SECONDS = "seconds.json"
PATIENCE = 1e6
"""Minutes within which a run may end that is begun: the same command is given again."""
Entry = dict[str, Any]


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return the rank correlation of two lists, equal values sharing their mean rank; None where one list is all equal."""
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (left, right)]
    if any(of_list.std() == 0 for of_list in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values[None, :]).sum(1)
    return below + ((values[:, None] == values[None, :]).sum(1) - 1) / 2


def spread(ranked: Sequence[Entry], number: int) -> list[Entry]:
    """Choose so many of a ranking, the first and the last among them, at equal distances."""
    if len(ranked) <= number:
        return list(ranked)
    return [ranked[round(place)] for place in np.linspace(0, len(ranked) - 1, number)]


def train(trials: Sequence[Trial], folder: Path, at_once: int | None, until: float | None) -> list[Entry]:
    """Train a fleet, or go on with it; leave the process where a signal or the moment ``until`` stopped it."""
    if is_fleet(folder):
        for trial in trials:
            known = RunFolder(folder / trial.name)
            if known.record_path.is_file():
                refuse_other_settings(known.path, known.read_record().get("config", {}), trial.config, "; choose another --out")
    began = time.perf_counter()
    reporting = Reporting(Console(stderr=True))
    left = None if until is None else max((until - time.monotonic()) / 60, 1e-3)
    limit = None if left is None else TimeLimit(left, max(left, PATIENCE))
    if is_fleet(folder):
        outcome = resume_fleet(folder, reporting, at_once, limit=limit)
    else:
        outcome = start_fleet(trials, folder, reporting, at_once, limit=limit)
    spent = [*seconds_of(folder), round(time.perf_counter() - began, 2)]
    write_atomically(folder / SECONDS, json.dumps(spent).encode())
    if outcome.signal is not None:
        print("stopped; the same command goes on", file=sys.stderr)
        raise SystemExit(128 + outcome.signal)
    if outcome.out_of_time:
        print("out of time, and every state is saved; the same command goes on", file=sys.stderr)
        raise SystemExit(1)
    return outcome.records


def seconds_of(folder: Path) -> list[float]:
    """What each process that worked on a fleet took; one that was killed outright is not among them."""
    try:
        return list(json.loads((folder / SECONDS).read_bytes()))
    except FileNotFoundError:
        return []


def entry(record: Entry, params: dict[str, Any]) -> Entry:
    """What is kept of a run."""
    predict = record.get("config", {}).get("smoothing", {}).get("predict")
    tests = [
        found["perplexity"]
        for found in record.get("results", [])
        if (found["split"], found["predict"], found["tuned_temperature"]) == ("test", predict, False)
    ]
    return {
        "run": record["name"],
        "params": params,
        "status": record["status"],
        "valid_perplexity": (record.get("best") or {}).get("valid_perplexity"),
        "best_step": (record.get("best") or {}).get("step"),
        "test_perplexity": tests[0] if tests else None,
        "steps": record.get("steps"),
        "seconds": record.get("seconds"),
        **({"reason": record["reason"]} if record["status"] == "failed" else {}),
    }


def ranking(entries: Sequence[Entry]) -> list[Entry]:
    """The runs that came to their end with a perplexity, the best first."""
    through = [found for found in entries if found["status"] == "finished" and found["valid_perplexity"] is not None]
    return sorted(through, key=lambda found: float(found["valid_perplexity"]))


def compared(short: Sequence[Entry], long: Sequence[Entry]) -> Entry:
    """Hold the short runs against the long ones of the same parameters."""
    by_params = {json.dumps(found["params"]): found for found in ranking(short)}
    pairs = [(by_params[json.dumps(found["params"])], found) for found in ranking(long)]
    values = [[float(found["valid_perplexity"]) for found in column] for column in zip(*pairs, strict=True)]
    return {
        "configurations": len(pairs),
        "spearman": spearman(*values) if len(pairs) > 1 else None,
        "pairs": [
            {"params": one["params"], "short": one["valid_perplexity"], "long": other["valid_perplexity"]}
            for one, other in pairs
        ],
        "note": "development perplexities of the same configurations and seed, the best of the long schedule first",
    }


def only_arm(study: str, settings: Sequence[str]) -> tuple[str, Arm]:
    loaded = load_study(study, settings)
    if loaded.sampler.kind != "grid" or len(loaded.arms) != 1:
        raise InputError(f"{study}: a study with one arm and the sampler grid is needed")
    return loaded.name, loaded.arms[0]


def stage(folder: Path, steps: int, entries: list[Entry]) -> Entry:
    parts = seconds_of(folder)
    return {
        "steps": steps,
        "seconds": round(sum(parts), 2),
        "minutes": round(sum(parts) / 60, 2),
        "sessions": parts,
        "runs": entries,
    }


def main(
    *,
    out: Path,
    study: str = "paper-grid",
    data_dir: Path | None = None,
    long_steps: int = 54_000,
    configurations: int = 8,
    at_once: int | None = None,
    minutes: float | None = None,
    record: Path | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
) -> None:
    """Train both, and print the record; ``--record`` also writes it to a file.

    ``--out`` keeps the runs; ``--data-dir`` holds ``ptb``; ``--long-steps`` is the long schedule of ``--configurations`` runs.
    After ``--minutes`` everything is saved, and the same command goes on.
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    settings = [*([f"data.data_dir={json.dumps(str(data_dir))}"] if data_dir else []), *(set_ or [])]
    name, arm = only_arm(study, settings)
    device = resolve_device(arm.config.train.device)
    corpus_of(arm.config)  # a text that is not there is one message, and not one for every run
    points = list(grid(arm.space))
    configs = [with_values(arm.config, point, name) for point in points]
    trials = [Trial(f"point-{number:02d}", config) for number, config in enumerate(configs)]
    records = train(trials, out / "short", at_once, until)
    short = [entry(found, point) for found, point in zip(records, points, strict=True)]
    chosen = [short.index(found) for found in spread(ranking(short), configurations)]
    if len(chosen) < 2:
        raise InputError(f"{out / 'short'}: fewer than two runs came to their end; record.json in each says why")
    longer = [
        Trial(trials[number].name, replace(configs[number], train=replace(configs[number].train, steps=long_steps)))
        for number in sorted(chosen)
    ]
    records = train(longer, out / "long", at_once, until)
    long = [entry(found, points[number]) for found, number in zip(records, sorted(chosen), strict=True)]
    stages = {
        "short": stage(out / "short", arm.config.train.steps, short),
        "long": stage(out / "long", long_steps, long),
    }
    result = {
        "benchmark": "paper_grid",
        "study": name,
        "arm": arm.name,
        "data": arm.config.data.name,
        "hidden": arm.config.model.hidden,
        "seed": arm.config.train.seed,
        "at_once": number_at_once([arm.config], at_once),
        **stages,
        "seconds": round(sum(found["seconds"] for found in stages.values()), 2),
        "short_against_long": compared(short, long),
        **environment(device),
    }
    text = json.dumps(result, indent=2)
    if record is not None:
        write_atomically(record, f"{text}\n".encode())
    print(text)


if __name__ == "__main__":
    try:
        cyclopts.run(main)
    except InputError as error:
        print(f"paper_grid: {error}", file=sys.stderr)
        sys.exit(2)
