"""train --fleet, as a person calls it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from commands_for_tests import Run, refused
from networks_for_tests import TINY
from varsmooth.train.trainer import Trainer

TEXT = "the cat sat on the mat\nthe dog sat on the <unk>\n\na cat and a dog sat\n"
QUICK = [
    part
    for change in (*TINY, "train.steps=6", "train.eval_every=3")
    if not change.startswith("data.name")
    for part in ("--set", change)
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for split, times in (("train", 20), ("valid", 3), ("test", 4)):
        (folder / f"{split}.txt").write_text(TEXT * times)
    return folder


def test_a_fleet_ends_with_a_table(run: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    names = ["vanilla-seed1", "vanilla-seed2", "smoothing-kneser-ney-seed1", "smoothing-kneser-ney-seed2"]
    arguments = ["--fleet", "vanilla", "smoothing-kneser-ney", "--seeds", "1,2", "--at-once", 2]
    status, shown, _ = run("train", *arguments, "--out", out, "--data", text, *QUICK)
    assert status == 0
    assert {path.name for path in out.iterdir() if path.is_dir()} == set(names)
    rows = [line for line in shown.splitlines() if "│" in line]
    for name, row in zip(names, rows, strict=True):
        record = json.loads((out / name / "record.json").read_text())
        predict = record["config"]["smoothing"]["predict"]
        (test,) = (
            result["perplexity"]
            for result in record["results"]
            if (result["split"], result["predict"], result["tuned_temperature"]) == ("test", predict, False)
        )
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        best = record["best"]["valid_perplexity"]
        assert cells == [name, "finished", f"{best:.2f}", f"{test:.2f}", predict, f"{record['ms_per_step']:.2f}"]


def test_json_is_the_list_of_records(run: Run, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "trials.json"
    file.write_text(json.dumps([{"recipe": "vanilla", "name": "a", "seed": 5}, {"recipe": "vanilla", "name": "b"}]))
    out = tmp_path / "runs"
    status, shown, _ = run("train", "--fleet", file, "--out", out, "--data", text, *QUICK, "--json")
    records = json.loads(shown)
    assert status == 0
    assert [(record["name"], record["seed"]) for record in records] == [("a", 5), ("b", 1)]
    assert records == [{"name": name, **json.loads((out / name / "record.json").read_text())} for name in "ab"]


def test_one_failure_is_status_1_and_the_others_are_there(run: Run, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "trials.json"
    trials = [{"recipe": "vanilla", "name": "bad", "set": {"train.lr": 1e30}}, {"recipe": "vanilla", "name": "good"}]
    file.write_text(json.dumps(trials))
    out = tmp_path / "runs"
    status, shown, complaint = run("train", "--fleet", file, "--out", out, "--data", text, *QUICK)
    assert status == 1
    assert "bad: failed: the loss or its gradient is not finite" in shown
    assert complaint == "varsmooth: 1 of 2 runs failed; record.json in each one's folder says why\n"
    assert json.loads((out / "good" / "record.json").read_text())["status"] == "finished"
    status, shown, _ = run("train", "--resume", out, "--json")
    assert (status, [record["status"] for record in json.loads(shown)]) == (1, ["failed", "finished"])


def test_a_signal_says_how_to_go_on(run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, step = tmp_path / "my runs", Trainer.step

    def signalled(self: Trainer) -> Any:
        if self.progress.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", signalled)
        arguments = ["--fleet", "vanilla", "--seeds", "1,2", "--at-once", 2, "--out", out, "--data", text]
        status, shown, complaint = run("train", *arguments, *QUICK)
    assert status == 143
    assert complaint == f"varsmooth: stopped; to go on: varsmooth train --resume '{out}' --at-once 2\n"
    assert shown.count("stopped") == 4, "a line and a row for each"
    assert run("train", "--resume", out, "--at-once", 2)[0] == 0
    assert json.loads((out / "vanilla-seed2" / "record.json").read_text())["steps"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fleet", "vanila"], ["vanila", "did you mean 'vanilla'"]),
        (["--fleet", "vanilla", "absent.toml"], ["absent.toml"]),
        (["--fleet", "absent.json"], ["absent.json", "cannot be read"]),
        (["--fleet", "vanilla", "a.json"], ["one .json file alone", "a.json"]),
        (["--fleet", "bad.json"], ["bad.json, trial 1", "unknown key 'sed'", "did you mean 'seed'"]),
        (["--fleet", "bad.json", "--seeds", "1"], ["--seeds", "bad.json"]),
        (["--fleet", "vanilla", "vanilla"], ["'vanilla-seed1' is taken"]),
        (["--fleet", "vanilla", "--seeds", "1,1"], ["'vanilla-seed1' is taken"]),
        (["--fleet", "vanilla", "--seeds", "1,x"], ["--seeds", "'1,x'"]),
        (["--fleet", "vanilla", "--seeds", ""], ["--seeds"]),
        (["--fleet", "vanilla", "--seeds", "-1"], ["train.seed", "-1"]),
        (["--fleet", "vanilla", "--at-once", "0"], ["--at-once", "0"]),
        (["--fleet", "vanilla", "--recipe", "vanilla"], ["--recipe"]),
        (["--fleet", "vanilla", "--seed", "1"], ["--seeds"]),
        (["--fleet", "vanilla", "--set", "train.lrr=1"], ["train.lrr", "train.lr"]),
        (["--recipe", "vanilla", "--seeds", "1,2"], ["--seeds", "--fleet"]),
        (["--recipe", "vanilla", "--at-once", "2"], ["--at-once", "--fleet"]),
        (["--fleet"], ["--fleet"]),
    ],
)
def test_bad_flags_get_one_line_and_leave_nothing(
    run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('[{"recipe": "vanilla", "sed": 1}]')
    refused(run("train", "--out", "runs", "--data", text, *QUICK, *arguments), *words)
    assert not (tmp_path / "runs").exists()


def test_a_text_that_is_not_there_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "train.txt").write_text("a\n")
    for data, words in (("nowhere", "no data set and no folder called 'nowhere'"), (tmp_path / "part", "has no valid.txt")):
        refused(run("train", "--fleet", "vanilla", "--out", tmp_path / "runs", "--data", data, *QUICK), words)
        assert not (tmp_path / "runs").exists()


def test_a_fleet_is_resumed_with_nothing_but_its_folder(run: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert run("train", "--fleet", "vanilla", "--out", out, "--data", text, *QUICK)[0] == 0
    refused(run("train", "--fleet", "vanilla", "--out", out, "--data", text, *QUICK), "already holds", "--resume")
    for more in (["--seeds", "1"], ["--fleet", "vanilla"], ["--out", out], ["--set", "train.lr=1"], ["--recipe", "vanilla"]):
        refused(run("train", "--resume", out, *more), "--resume takes everything from the run")
    refused(run("train", "--resume", out / "vanilla-seed1", "--at-once", 2), "--at-once")
    refused(run("train", "--fleet", "vanilla", "--data", text), "--out is missing")
    assert run("train", "--resume", out)[0] == 0
    (out / "fleet.json").write_text("{}")
    refused(run("train", "--resume", out), "fleet.json", "not the list of a fleet")
