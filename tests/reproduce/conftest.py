"""Records made by hand, so that every figure of a table is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands_for_tests import Outcome, Run
from runs_for_tests import record, result
from varsmooth.cli import main

Keep = Callable[..., Path]
BANDS = [(0, 0, 0), (1, 9, 10), (10, 99, 20), (100, 999, 30), (1000, None, 40)]


def judged(perplexity: float, predict: str, split: str, *, tuned: bool, rare: float = 5.0) -> dict[str, Any]:
    """A result with bands: ``rare`` is the loss of a token in the second of them, the others lose 4 each."""
    bands = [
        {"low": low, "high": high, "tokens": tokens, "nll": tokens * (rare if low == 1 else 4.0)} for low, high, tokens in BANDS
    ]
    temperature = 0.9 if tuned else 1.0
    error = 0.01 if tuned else 0.03
    return result(
        perplexity,
        predict,
        split=split,
        temperature=temperature,
        tuned_temperature=tuned,
        tokens=100,
        bands=bands,
        calibration={"error": error, "accuracy": 0.3, "confidence": 0.31},
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def keep(results: Path) -> Keep:
    """Write the record of a run: ``test`` is its figure by its own prediction, the other one's is 0.5 above it.

    Valid is 4 above test; the tuned temperature takes 1 off both.
    """

    def keep(
        row: str,
        test: float,
        seed: int = 1,
        *,
        corpus: str = "ptb",
        group: str = "512-paper",
        name: str = "",
        predict: str = "mode",
        method: str = "none",
        rare: float = 5.0,
        draws: tuple[float, float] | None = None,
        config: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        found = []
        for kind in ("mode", "mean") if predict == "mean" else ("mode",):
            for split, more in (("valid", 4.0), ("test", 0.0)):
                value = test + more + (0.0 if kind == predict else 0.5)
                found += [judged(value - tuned, kind, split, tuned=bool(tuned), rare=rare) for tuned in (0, 1)]
        for average, value in zip(("arithmetic", "geometric"), draws or (), strict=False):
            found.append(result(value, "sample", split="valid", samples=20, average=average))
        settings = {"smoothing": {"predict": predict, "method": method}, "train": {"seed": seed, "lr": 0.003}, **(config or {})}
        folder = results / corpus / group / f"{name or row}-seed{seed}"
        folder.mkdir(parents=True)
        content = record(f"{row}/{corpus}-512", seed, results=found, config=settings, **changes)
        (folder / "record.json").write_text(json.dumps(content))
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "valid_perplexity": test + 4}) + "\n")
        return folder

    return keep


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    return run
