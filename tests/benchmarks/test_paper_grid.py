"""The benchmark of the paper's grid, at a size that a CPU trains in seconds and without Optuna."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from varsmooth.errors import InputError
from varsmooth.train.trainer import Trainer

STUDY = """
name = "tiny-grid"
data = "synthetic"
sampler = "grid"
budget.steps = 6
[base]
data.max_tokens = 1500
model.hidden = 8
model.layers = 1
train.batch = 4
train.window = 5
train.eval_every = 3
train.device = "cpu"
[space]
train.lr = [0.003, 0.03]
smoothing.gamma = [0.1, 0.4]
[[arms]]
recipe = "smoothing-kneser-ney"
"""


@pytest.fixture
def paper_grid(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("optuna", "sqlalchemy"):
        monkeypatch.setitem(sys.modules, name, None)
    path = Path(__file__).parents[2] / "benchmarks" / "paper_grid.py"
    specification = importlib.util.spec_from_file_location("paper_grid", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def study(tmp_path: Path) -> str:
    (tmp_path / "tiny.toml").write_text(STUDY)
    return str(tmp_path / "tiny.toml")


def test_ranks_are_correlated_as_spearman_did(paper_grid: ModuleType) -> None:
    assert paper_grid.spearman([1, 2, 3, 4], [10, 20, 30, 99]) == pytest.approx(1.0)
    assert paper_grid.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # 1 - 6 (1 + 1 + 4 + 1 + 1) / (5 * 24)
    assert paper_grid.spearman([1, 2, 3, 4, 5], [20, 10, 50, 30, 40]) == pytest.approx(0.6)
    assert paper_grid.spearman([1, 1, 2], [3, 3, 4]) == pytest.approx(1.0), "equal values share a rank"
    assert paper_grid.spearman([1, 1], [1, 2]) is None


def test_what_is_trained_longer_is_spread_over_the_ranking(paper_grid: ModuleType) -> None:
    ranked = [{"place": place} for place in range(24)]
    assert [found["place"] for found in paper_grid.spread(ranked, 8)] == [0, 3, 7, 10, 13, 16, 20, 23]
    assert paper_grid.spread(ranked[:3], 8) == ranked[:3]


def test_the_record_holds_every_trial_and_a_stopped_benchmark_goes_on(
    paper_grid: ModuleType, study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, taken = Trainer.step, 0

    def signalled(self: Trainer) -> object:
        nonlocal taken
        taken += 1
        if taken == 9:  # in the second of four short runs
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    monkeypatch.setattr(Trainer, "step", signalled)
    options = {"out": tmp_path / "out", "study": study, "long_steps": 9, "configurations": 3}
    with pytest.raises(SystemExit) as left:
        paper_grid.main(**options)
    assert left.value.code == 128 + signal.SIGTERM
    with pytest.raises(SystemExit) as left:
        paper_grid.main(**options, minutes=1e-4)
    assert left.value.code == 1
    assert "out of time" in capsys.readouterr().err
    paper_grid.main(**options, record=tmp_path / "record.json")
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "record.json").read_text())
    short, long = found["short"], found["long"]
    assert [run["params"]["smoothing.gamma"] for run in short["runs"]] == [0.1, 0.4, 0.1, 0.4]
    assert [run["steps"] for run in short["runs"]] == [6] * 4
    assert [run["steps"] for run in long["runs"]] == [9] * 3
    assert (len(short["sessions"]), len(long["sessions"])) == (3, 1)
    assert found["seconds"] == pytest.approx(sum(short["sessions"] + long["sessions"]), abs=0.02)
    values = {json.dumps(run["params"]): run["valid_perplexity"] for run in short["runs"]}
    pairs = found["short_against_long"]["pairs"]
    assert [values[json.dumps(pair["params"])] for pair in pairs] == [pair["short"] for pair in pairs]
    assert min(values.values()) in [pair["short"] for pair in pairs]
    assert max(values.values()) in [pair["short"] for pair in pairs]
    expected = paper_grid.spearman([pair["short"] for pair in pairs], [pair["long"] for pair in pairs])
    assert found["short_against_long"]["spearman"] == expected
    assert found["versions"].keys() >= {"varsmooth", "torch"}
    assert {"hardware", "commit"} <= found.keys()
    with pytest.raises(InputError, match=r"with train\.clip = 10\.0; the trial asked for 2\.0; choose another --out"):
        paper_grid.main(**options, set_=["train.clip=2"])


def test_a_text_that_is_not_there_is_told_before_anything_is_made(paper_grid: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ptb was not found"):
        paper_grid.main(out=tmp_path / "out", data_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_it_is_the_papers_grid_unless_told_otherwise(paper_grid: ModuleType) -> None:
    name, arm = paper_grid.only_arm("paper-grid", ["data.data_dir=x"])
    assert (name, arm.config.model.hidden, arm.config.data.name) == ("paper-grid", 512, "ptb")
    with pytest.raises(InputError, match="one arm and the sampler grid"):
        paper_grid.only_arm("quick", [])
