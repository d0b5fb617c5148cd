"""A fleet that is really killed ends as one that never was."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from networks_for_tests import TINY
from processes_for_tests import PATIENCE, command, completed, wait_until
from varsmooth.train.folder import RunFolder, state_step

pytestmark = pytest.mark.slow
STEPS = 60
SETTINGS = (*TINY, f"train.steps={STEPS}", "train.eval_every=5", "train.save_every=8", "data.max_tokens=500")
NAMES = [f"{recipe}-seed{seed}" for recipe in ("vanilla", "element-kneser-ney") for seed in (1, 2)]


def start_arguments(out: Path) -> list[str]:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    fleet = ["--fleet", "vanilla", "element-kneser-ney", "--seeds", "1,2", "--at-once", "3"]
    return ["train", *fleet, "--out", str(out), *changes]


def resume_arguments(out: Path) -> list[str]:
    return ["train", "--resume", str(out), "--at-once", "3"]


def saved_steps(out: Path) -> int:
    """The newest saved steps of all runs together."""
    runs = [RunFolder(out / name) for name in NAMES if (out / name).exists()]
    return sum(max((state_step(path) for path in run.state_paths()), default=0) for run in runs)


def outcome(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in NAMES:
        kept = ("model.safetensors", f"state-{STEPS:08d}.safetensors", "metrics.jsonl", "config.toml", "vocab.txt", ".latest")
        record = json.loads((out / name / "record.json").read_text())
        found |= {f"{name}/{file}": (out / name / file).read_bytes() for file in kept}
        found |= {f"{name}/{key}": record[key] for key in ("status", "steps", "best", "results", "data", "config")}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fleet leaves that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "fleet"
    completed(start_arguments(out))
    return outcome(out)


def assert_same(out: Path, whole: dict[str, Any]) -> None:
    found = outcome(out)
    for name in whole:
        assert found[name] == whole[name], name


def test_a_fleet_killed_five_times_ends_as_one_never_stopped(whole: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "fleet"
    for moment in (0, 20, 60, 110, 170):
        begun = (out / "fleet.json").exists()
        with command(resume_arguments(out) if begun else start_arguments(out)) as running:
            wait_until(lambda moment=moment: saved_steps(out) >= moment, running)
            time.sleep(random.uniform(0, 0.3))
            running.send_signal(signal.SIGKILL)
            running.wait(timeout=PATIENCE)
            assert running.returncode == -signal.SIGKILL
    completed(resume_arguments(out))
    assert_same(out, whole)


def test_a_fleet_ended_by_a_signal_resumes(whole: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "fleet"
    with command(start_arguments(out)) as running:
        wait_until(lambda: saved_steps(out) >= 30, running)
        running.send_signal(signal.SIGTERM)
        _, messages = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143
    assert messages == f"varsmooth: stopped; to go on: varsmooth train --resume {out} --at-once 3\n"
    completed(resume_arguments(out))
    assert_same(out, whole)
