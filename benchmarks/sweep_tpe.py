"""Does TPE find, within half the trials of a grid, a configuration at least as good as the grid's best?

On the synthetic source, at a size that trains in a second or two: a grid of 3 learning rates x 2 lambdas x 4 gammas, and for
each of five sampler seeds a TPE search over the ranges that the grid spans, with half as many trials. Both minimise development
perplexity.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cyclopts
import torch
from rich.console import Console

from varsmooth.experiment import Reporting
from varsmooth.sweep import Board, Store, parse_study, summarize, work
from varsmooth.train.environment import environment

LAMBDAS, GAMMAS = [1e-4, 1e-3], [0.1, 0.2, 0.3, 0.4]


def spaces(rates: list[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The grid, and the ranges that it spans."""
    grid = {"train": {"lr": rates, "l2": LAMBDAS}, "smoothing": {"gamma": GAMMAS}}
    lr, l2 = ({"low": values[0], "high": values[-1], "log": True} for values in (rates, LAMBDAS))
    return grid, {"train": {"lr": lr, "l2": l2}, "smoothing": {"gamma": {"low": GAMMAS[0], "high": GAMMAS[-1]}}}


def search(name: str, sampler: dict[str, Any], space: dict[str, Any], trials: int, steps: int, folder: Path) -> list[float]:
    """Run one study; return the development perplexity of every trial in the order in which they ended."""
    table = {
        "name": name,
        "data": "synthetic",
        "sampler": sampler,
        "budget": {"trials": trials, "steps": steps},
        "base": {
            "data": {"max_tokens": 8000},
            "model": {"hidden": 32},
            "train": {"batch": 16, "window": 20, "eval_every": 50, "device": "cpu", "threads": 1, "save_every": 10_000},
        },
        "space": space,
        "arms": [{"recipe": "smoothing-kneser-ney"}],
    }
    study, out = parse_study(table, name, Path()), folder / name
    out.mkdir()
    store = Store.in_folder(out)
    work(study, out, store, Reporting(Console(quiet=True)))
    (arm,) = summarize(Board(study, store)).arms
    if not arm.finished:
        raise SystemExit(f"{name} was stopped after {len(arm.trials)} of {trials} trials; nothing is recorded")
    return [float(trial.valid_perplexity or float("inf")) for trial in arm.trials]


def main(*, rates: str = "0.01,0.03,0.1", steps: int = 300, seeds: int = 5, startup_trials: int = 4) -> None:
    """Compare the two and print what they found; ``rates`` are the grid's learning rates, the lowest first."""
    began = time.perf_counter()
    points, ranges = spaces([float(rate) for rate in rates.split(",")])
    count = len(rates.split(",")) * len(LAMBDAS) * len(GAMMAS)
    with tempfile.TemporaryDirectory() as folder:
        grid = search("grid", {"kind": "grid"}, points, count, steps, Path(folder))
        searches = {}
        for seed in range(1, seeds + 1):
            sampler = {"kind": "tpe", "seed": seed, "startup_trials": startup_trials}
            searches[seed] = search(f"tpe-{seed}", sampler, ranges, count // 2, steps, Path(folder))
    best = {seed: min(found) for seed, found in searches.items()}
    reached = {s: next((n for n, value in enumerate(f, 1) if value <= min(grid)), None) for s, f in searches.items()}
    result = {
        "benchmark": "sweep_tpe",
        "question": "is the best of half as many TPE trials at least as good as the grid's best (median over seeds)?",
        "steps": steps,
        "startup_trials": startup_trials,
        "grid": {"space": points, "trials": len(grid), "best": min(grid), "median": statistics.median(grid), "all": grid},
        "tpe": {
            "space": ranges,
            "trials": len(grid) // 2,
            "best_by_seed": best,
            "trials_until_as_good_as_the_grid": reached,
            "median_best": statistics.median(best.values()),
            "all": searches,
        },
        "median_at_least_as_good": statistics.median(best.values()) <= min(grid),
        "seconds": round(time.perf_counter() - began, 1),
        **environment(torch.device("cpu")),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    cyclopts.run(main)
