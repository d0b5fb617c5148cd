"""Trials that a machine without Optuna trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps_for_tests import board_of, outcomes, tiny_study
from varsmooth.errors import InputError
from varsmooth.experiment import Corpora, Reporting
from varsmooth.fleet import read_trials, start_fleet
from varsmooth.sweep import Board, Claims, Study, ask, ask_again, join, tell
from varsmooth.train.folder import RunFolder


def joined(study: Study, out: Path) -> Board:
    return join(study, board_of(study, out).store, Corpora())


def trained(trials: list[dict[str, Any]], folder: Path, *settings: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "trials.json").write_text(json.dumps(trials))
    start_fleet(read_trials(folder / "trials.json", settings), folder / "runs", Reporting(Console(quiet=True)), 4)
    return folder / "runs"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return tiny_study(tmp_path, seeds=[4], budget={"steps": 4})


def test_asked_trained_told(study: Study, tmp_path: Path) -> None:
    board = joined(study, tmp_path / "out")
    claims = Claims(tmp_path / "out")
    trials = ask(board, claims, 3)
    assert [trial["name"] for trial in trials] == ["vanilla-trial-0000", "kn-trial-0000", "vanilla-trial-0001"]
    assert ask_again(board) == sorted(trials, key=lambda trial: str(trial["name"]).startswith("kn"))
    rest = ask(board, claims, 9)
    assert [trial["name"] for trial in rest] == ["kn-trial-0001"]
    runs = trained(trials + rest, tmp_path / "box")
    configs = {path.parent.name: RunFolder(path.parent).read_record()["config"] for path in runs.glob("*/record.json")}
    assert configs["kn-trial-0001"]["train"]["lr"] == 0.03
    assert configs["kn-trial-0001"]["smoothing"]["scheme"] == "kneser-ney"
    assert {config["train"]["steps"] for config in configs.values()} == {4}

    told = tell(board, [runs])
    assert [entry.outcome for entry in told] == ["counted"] * 4
    assert outcomes(board) == {f"tiny/{arm}": {0: "COMPLETE", 1: "COMPLETE"} for arm in ("vanilla", "kn")}
    before = {stage.title: [trial.value for trial in stage.trials()] for stage in board.arms}
    assert [entry.outcome for entry in tell(board, [runs])] == ["counted before"] * 4
    assert {stage.title: [trial.value for trial in stage.trials()] for stage in board.arms} == before
    assert board.arms[0].trials()[0].intermediate_values.keys() == {2, 4}

    seeds = ask(board, claims, 9)
    assert [trial["name"] for trial in seeds] == ["vanilla-seed-4", "kn-seed-4"]
    tell(board, [trained(seeds, tmp_path / "box2")])
    assert board.finished()


def test_a_failed_run_is_told_with_its_reason_and_an_unfinished_one_stays_open(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, space={"train": {"lr": [1e30, 0.01]}}, arms=[{"recipe": "vanilla"}])
    board = joined(study, tmp_path / "out")
    runs = trained(ask(board, Claims(tmp_path / "out"), 2), tmp_path / "box")
    folder = RunFolder(runs / "vanilla-trial-0001")
    finished = folder.read_record()
    folder.write_record({**finished, "status": "stopped"})
    told = {entry.run: entry for entry in tell(board, [runs])}
    assert told["vanilla-trial-0000"].outcome == "counted"
    assert "not finite" in (told["vanilla-trial-0000"].reason or "")
    assert told["vanilla-trial-0001"].outcome == "unfinished"
    assert outcomes(board) == {"tiny/vanilla": {0: "FAIL"}}
    folder.write_record(finished)
    tell(board, [runs])
    assert outcomes(board) == {"tiny/vanilla": {0: "FAIL", 1: "COMPLETE"}}


def test_a_machine_without_the_text_uses_up_no_trial(study: Study, tmp_path: Path) -> None:
    board = joined(study, tmp_path / "out")
    trials = ask(board, Claims(tmp_path / "out"), 1)
    (told,) = tell(board, [trained(trials, tmp_path / "box", 'data.name="/nowhere"')])
    assert told.outcome == "unfinished"
    assert "there is no folder /nowhere" in (told.reason or "")
    assert outcomes(board)["tiny/vanilla"] == {}
    assert [entry.outcome for entry in tell(board, [trained(trials, tmp_path / "mended")])] == ["counted"]


def test_what_differs_from_what_was_asked_for_is_refused(study: Study, tmp_path: Path) -> None:
    board = joined(study, tmp_path / "out")
    trials = ask(board, Claims(tmp_path / "out"), 1)
    runs = trained(trials, tmp_path / "other", "train.batch=3")
    with pytest.raises(InputError, match=r"was trained with train.batch = 3; the trial asked for 4"):
        tell(board, [runs])
    runs = trained(trials, tmp_path / "same", "train.threads=1", "train.save_every=100")
    folder = RunFolder(runs / "vanilla-trial-0000")
    record = folder.read_record()
    data = {**record["data"], "checksums": {**record["data"]["checksums"], "train": "0" * 64}}
    for change, words in (
        ({"data": data}, "the train text has the checksum 000000000000"),
        ({"versions": {**record["versions"], "varsmooth": "0.0.9"}}, r"runs varsmooth 0\.0\.9"),
    ):
        folder.write_record({**record, **change})
        with pytest.raises(InputError, match=words):
            tell(board, [runs])
    folder.write_record(record)
    stranger = shutil.copytree(runs / "vanilla-trial-0000", runs / "stranger")
    with pytest.raises(InputError, match="no trial of this study has that name"):
        tell(board, [stranger])
    assert outcomes(board)["tiny/vanilla"] == {}
    assert [entry.outcome for entry in tell(board, [runs / "vanilla-trial-0000"])] == ["counted"]


def test_one_that_nobody_asked_for_does_not_keep_the_others_from_being_counted(study: Study, tmp_path: Path) -> None:
    board, claims = joined(study, tmp_path / "out"), Claims(tmp_path / "out")
    runs = trained(ask(board, claims, 3), tmp_path / "box")
    taken = board.arms[1].claim(claims, take_back=True)
    assert taken is not None
    told = {entry.run: entry.outcome for entry in tell(board, [runs])}
    assert told == {"kn-trial-0000": "not asked for", "vanilla-trial-0000": "counted", "vanilla-trial-0001": "counted"}
    assert outcomes(board) == {"tiny/vanilla": {0: "COMPLETE", 1: "COMPLETE"}, "tiny/kn": {}}


def test_nothing_is_counted_where_one_run_was_trained_otherwise(study: Study, tmp_path: Path) -> None:
    board = joined(study, tmp_path / "out")
    runs = trained(ask(board, Claims(tmp_path / "out"), 2), tmp_path / "box")
    folder = RunFolder(runs / "vanilla-trial-0000")
    record = folder.read_record()
    folder.write_record({**record, "config": {**record["config"], "train": {**record["config"]["train"], "clip": 1.0}}})
    with pytest.raises(InputError, match=r"train\.clip = 1\.0"):
        tell(board, [runs])
    assert outcomes(board) == {"tiny/vanilla": {}, "tiny/kn": {}}


@pytest.mark.slow
def test_the_fleet_of_a_machine_without_optuna_needs_none() -> None:
    code = (
        "import sys; sys.modules['optuna'] = sys.modules['sqlalchemy'] = None\n"
        "import varsmooth.cli, varsmooth.sweep\n"
        "from varsmooth.errors import InputError\n"
        "try: varsmooth.sweep.Store('sqlite://')\n"
        "except InputError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert "pip install 'varsmooth[sweep]'" in shown
