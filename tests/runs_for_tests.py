"""Run folders made by hand, so that every figure in a report is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varsmooth.report import RunSummary

MakeRun = Callable[..., RunSummary]


def result(perplexity: float, predict: str = "mode", *, split: str = "test", **changes: Any) -> dict[str, Any]:
    plain = {"temperature": 1.0, "tuned_temperature": False, "samples": None, "average": None, "nll": 4.5, "tokens": 2000}
    return {"split": split, "predict": predict, "perplexity": perplexity, **plain, **changes}


def record(recipe: str, seed: int, **changes: Any) -> dict[str, Any]:
    config = {"name": recipe, "model": {"hidden": 64, "tied": True}, "train": {"seed": seed, "lr": 0.003}}
    tokens = {"train": 20000, "valid": 2000, "test": 2100}
    data = {"name": "python", "vocab_size": 1000, "vocab_checksum": "abc", "checksums": {"train": "def"}, "tokens": tokens}
    return {
        "format": "varsmooth.record.1",
        "recipe": recipe,
        "status": "finished",
        "seed": seed,
        "parameters": 131_072,
        "data": data,
        "config": config,
        "steps": 1200,
        "seconds": 61.0,
        "best": {"step": 800, "valid_perplexity": 95.0},
        "results": [],
        "versions": {"varsmooth": "0.1.0", "torch": "2.13.0"},
        "hardware": {"device": "cpu", "name": "Some Processor", "cores": 2},
        "commit": None,
        **changes,
    }
