"""A fleet on a GPU: runs on streams of their own follow what they do alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from networks_for_tests import tiny_config
from varsmooth.experiment import Reporting, start_run
from varsmooth.fleet import Trial, resume_fleet, start_fleet
from varsmooth.train.folder import RunFolder
from varsmooth.train.trainer import Trainer

pytestmark = pytest.mark.gpu
QUIET = Reporting(Console(quiet=True))
TOLERANCE = 1e-3
"""Relative, on perplexities after 60 steps in fp32: sums on a GPU may be taken in another order each time."""
COMMON = (
    "train.device=cuda",
    "train.steps=60",
    "train.eval_every=20",
    "train.save_every=25",
    "train.batch=16",
    "train.window=8",
)


def trials() -> list[Trial]:
    return [
        Trial("plain", tiny_config("vanilla", *COMMON, "model.hidden=32")),
        Trial("words", tiny_config("smoothing-kneser-ney", *COMMON, "model.hidden=64", "train.seed=3", "train.average=0.9")),
        Trial("elements", tiny_config("element-kneser-ney", *COMMON, "model.hidden=32", "train.steps=45")),
    ]


def curve(run: Path) -> list[float]:
    return [line["valid_perplexity"] for line in RunFolder(run).read_metrics()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    for trial in trials():
        start_run(trial.config, out / trial.name, QUIET)
    return out


def assert_as_alone(fleet: Path, alone: Path) -> None:
    for trial in trials():
        assert curve(fleet / trial.name) == pytest.approx(curve(alone / trial.name), rel=TOLERANCE), trial.name
        records = [RunFolder(folder / trial.name).read_record() for folder in (fleet, alone)]
        assert records[0]["status"] == "finished"
        found, expected = ([result["perplexity"] for result in record["results"]] for record in records)
        assert found == pytest.approx(expected, rel=TOLERANCE), trial.name


def test_a_fleet_follows_its_runs_alone(tmp_path: Path, alone: Path) -> None:
    start_fleet(trials(), tmp_path / "fleet", QUIET)
    assert_as_alone(tmp_path / "fleet", alone)


def test_every_run_has_a_stream_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[tuple[int, int], set[int]] = {}
    step = Trainer.step

    def watched(self: Trainer) -> Any:
        key = (self.settings.seed, self.settings.steps)
        used.setdefault(key, set()).add(torch.cuda.current_stream().cuda_stream)
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    start_fleet(trials(), tmp_path / "fleet", QUIET)
    streams = [stream for stream, *more in used.values() if not more]
    assert len(streams) == len(set(streams)) == 3
    assert torch.cuda.default_stream().cuda_stream not in streams


def test_a_stopped_fleet_goes_on_where_it_was(tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.step

    def signalled(self: Trainer) -> Any:
        if (self.settings.seed, self.progress.step) == (3, 33):
            signal.raise_signal(signal.SIGTERM)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", signalled)
        outcome = start_fleet(trials(), tmp_path / "fleet", QUIET)
    assert [record["status"] for record in outcome.records] == ["stopped"] * 3
    resume_fleet(tmp_path / "fleet", QUIET)
    assert_as_alone(tmp_path / "fleet", alone)


def test_memory_is_given_back_when_a_run_ends(tmp_path: Path) -> None:
    runs = [
        Trial(f"run-{seed}", tiny_config("vanilla", *COMMON, "model.hidden=512", "train.steps=5", f"train.seed={seed}"))
        for seed in range(4)
    ]
    start_fleet(runs[:1], tmp_path / "one", QUIET)
    one = torch.cuda.memory_reserved()
    start_fleet(runs, tmp_path / "four", QUIET, at_once=1)
    assert torch.cuda.memory_reserved() <= one * 1.5 + 2**26
