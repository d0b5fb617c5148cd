"""Records made by hand, so that every figure of a table is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands_for_tests import Outcome, Run
from runs_for_tests import record, result
from varsmooth.cli import main
from varsmooth.config import Config, to_mapping
from varsmooth.recipe import load_recipe
from varsmooth.reproduce.experiments import named_experiments
from varsmooth.reproduce.matching import standard_checksums
from varsmooth.reproduce.records import planned_jobs
from varsmooth.train.trainer import Trainer

Keep = Callable[..., Path]
TINY = {
    "model.hidden": 8,
    "train.batch": 4,
    "train.window": 5,
    "train.steps": 6,
    "train.precision": "fp32",
    "train.device": "cpu",
    "evaluate.batch": 3,
    "evaluate.window": 16,
    "evaluate.burn_in": 4,
}
WIDE = {key: value for key, value in TINY.items() if key != "model.hidden"}
BANDS = [(0, 0, 0), (1, 9, 10), (10, 99, 20), (100, 999, 30), (1000, None, 40)]


def judged(perplexity: float, predict: str, split: str, *, tuned: bool, rare: float = 5.0) -> dict[str, Any]:
    """A result with bands: ``rare`` is the loss of a token in the second of them, the others lose 4 each."""
    bands = [
        {"low": low, "high": high, "tokens": tokens, "nll": tokens * (rare if low == 1 else 4.0)} for low, high, tokens in BANDS
    ]
    temperature = 0.9 if tuned else 1.0
    error = 0.01 if tuned else 0.03
    scaled = {"scaled": {"context": 0.9, "bias": 1.1, "perplexity": perplexity - 0.25}} if tuned else {}
    return result(
        perplexity,
        predict,
        **scaled,
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


def planned(results: Path, corpus: str, group: str, name: str, recipe: str) -> Config:
    """The configuration that a run of this name is to have, or that of its recipe where none is planned."""
    configs = {job.name.rpartition("-seed")[0]: job.config for job in planned_jobs(results, corpus, group)}
    return configs.get(name) or load_recipe(recipe)


@pytest.fixture
def keep(results: Path) -> Keep:
    """Write the record of a run as it is planned, ``config`` changed: ``test`` is its figure by its own prediction.

    The other prediction's is 0.5 above it, valid is 4 above test; the tuned temperature takes 1 off both.
    """

    def keep(
        row: str,
        test: float,
        seed: int = 1,
        *,
        corpus: str = "ptb",
        group: str = "512-paper",
        name: str = "",
        rare: float = 5.0,
        draws: tuple[float, float] | None = None,
        config: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        folder = results / corpus / group / f"{name or row}-seed{seed}"
        folder.mkdir(parents=True)
        data = {**record(row, seed)["data"], "name": corpus, "checksums": standard_checksums(corpus)}
        settings = to_mapping(planned(results, corpus, group, name or row, f"{row}/{corpus}-512"))
        for section, values in (config or {}).items():
            settings[section] = {**settings[section], **values}
        settings["train"]["seed"] = seed
        predict = settings["smoothing"]["predict"]
        found = []
        for kind in ("mode", "mean") if predict == "mean" else ("mode",):
            for split, more in (("valid", 4.0), ("test", 0.0)):
                value = test + more + (0.0 if kind == predict else 0.5)
                found += [judged(value - tuned, kind, split, tuned=bool(tuned), rare=rare) for tuned in (0, 1)]
        for average, value in zip(("arithmetic", "geometric"), draws or (), strict=False):
            found.append(result(value, "sample", split="valid", samples=20, average=average))
        content = record(f"{row}/{corpus}-512", seed, **{"results": found, "config": settings, "data": data, **changes})
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


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "ptb"
    folder.mkdir(parents=True)
    for split, lines in (("train", 60), ("valid", 12), ("test", 15)):
        text = "".join(f"the cat {word} on <unk> mat\n" for word in ["sat", "lay", "ate"] * (lines // 3))
        (folder / f"{split}.txt").write_text(text)
    return folder.parent


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tiny runs on a tiny text, and the seed of every training step."""
    for module in ("matching", "running"):
        monkeypatch.setattr(f"varsmooth.reproduce.{module}.standard_checksums", lambda _: {})
    monkeypatch.setattr("varsmooth.reproduce.jobs.budget_values", lambda _: TINY)
    monkeypatch.setattr("varsmooth.reproduce.experiments.budget_values", lambda _: TINY)
    # Of finalists the size must be one of the table's, by which the choice finds its row.
    monkeypatch.setattr("varsmooth.reproduce.finalists.budget_values", lambda _: WIDE)
    taken, step = [], Trainer.step

    def watched(self: Trainer) -> object:
        taken.append(self.settings.seed)
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    return taken


@pytest.fixture
def two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve over shares with one point, one arm and two trials, of both corpora."""
    experiment = named_experiments()["data-size"]
    arm = replace(experiment.arms[0], grids=(({"train.lr": 0.01}, {"train.lr": 1e-7}),))
    small = replace(
        experiment, arms=(arm,), corpora=("ptb", "wikitext-2"), values=(0.5,), steps=(6,), final_seeds=(1, 2), in_table=None
    )
    monkeypatch.setitem(named_experiments(), "data-size", small)


@pytest.fixture
def two_trials(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    """A round of tuning with two trials of one row, of which one is far better."""
    experiment = named_experiments()["tuning-rate"]
    arm = replace(experiment.arms[0], variants=({"train.lr": 1e-7}, {"train.lr": 0.001}))
    monkeypatch.setitem(named_experiments(), "tuning-rate", replace(experiment, arms=(arm,)))
    # The size must be one of the table's, by which the choice finds its row.
    monkeypatch.setattr("varsmooth.reproduce.experiments.budget_values", lambda _: WIDE)
