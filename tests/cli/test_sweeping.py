"""varsmooth sweep, as a person calls it."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from commands_for_tests import Run, refused
from sweeps_for_tests import empty_database, write_text
from varsmooth.cli import main
from varsmooth.cli.sweep_processes import environment_for
from varsmooth.fleet.trials import seconds_of

STUDY = """
name = "tiny"
data = "text"
sampler = "grid"
seeds = [3]
budget.steps = 4

[base]
model.hidden = 8
model.layers = 1
train.batch = 4
train.window = 5
train.device = "cpu"
train.eval_every = 2
evaluate.batch = 3
evaluate.window = 16
evaluate.burn_in = 4

[space]
train.lr = [0.01, 0.03]

[[arms]]
recipe = "vanilla"

[[arms]]
name = "kn"
recipe = "smoothing-kneser-ney"
"""


def write_study(folder: Path, *replacements: tuple[str, str]) -> Path:
    path = write_text(folder) / "tiny.toml"
    text = STUDY
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def prepared(out: Path) -> Path:
    out.mkdir()
    (out / "sweep.db").write_bytes(empty_database())
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def out(folder: Path) -> Path:
    """A sweep that has ended; beside it lies what it printed, in shown.json."""
    out = prepared(folder / "out")
    with redirect_stdout(StringIO()) as shown, pytest.raises(SystemExit) as left:
        main(["sweep", str(write_study(folder)), "--out", str(out), "--json"])
    assert left.value.code == 0
    (folder / "shown.json").write_text(shown.getvalue())
    return out


def test_a_sweep_ends_with_the_best_of_each_arm(folder: Path, out: Path) -> None:
    found = json.loads((folder / "shown.json").read_text())
    assert found["finished"]
    assert [(arm["arm"], arm["used"]["trials"], len(arm["seeds"])) for arm in found["arms"]] == [
        ("vanilla", 2, 1),
        ("kn", 2, 1),
    ]
    assert found["recipes"] == {arm: str(out / f"best-{arm}.toml") for arm in ("vanilla", "kn")}


def test_the_winning_recipe_can_be_trained(run: Run, folder: Path, out: Path) -> None:
    status, shown, _ = run("train", "--recipe", out / "best-kn.toml", "--out", folder / "again", "--json")
    assert status == 0
    record = json.loads(shown)
    _, shown, _ = run("sweep", "show", out, "--json")
    (arm,) = (arm for arm in json.loads(shown)["arms"] if arm["arm"] == "kn")
    assert record["best"]["valid_perplexity"] == arm["best"]["valid_perplexity"]


def test_show_prints_budgets_and_writes_a_page(run: Run, folder: Path, out: Path) -> None:
    page = folder / "page.html"
    status, shown, _ = run("sweep", "show", out, "--report", page)
    assert status == 0
    assert "tiny: through, sampled by grid, pruned by none" in shown
    assert "the budget of each arm: 2 trials of 4 steps" in shown
    assert shown.count("2 of 2") == 2
    assert "importance: there are fewer than two parameters to compare" in shown
    text = page.read_text()
    assert text.count("<img ") == 2
    assert "http" not in text.replace("http-equiv", "")
    assert "2 arms, each with 2 trials of 4 steps; sampled by grid" in text
    assert "<h2>Best configurations</h2><h3>vanilla</h3>" in text
    refused(run("sweep", "show", out, "--report", page), "exists already", "--force")
    refused(run("sweep", "show", out, "--report", folder / "page.txt"), ".html")


def test_the_same_command_again_says_the_same(run: Run, folder: Path, out: Path) -> None:
    status, shown, _ = run("sweep", folder / "tiny.toml", "--out", out)
    assert status == 0
    assert f"best: varsmooth train --recipe {out}/best-vanilla.toml --out RUN" in shown


def test_what_a_sweep_took_is_kept_and_added_up(run: Run, folder: Path, out: Path) -> None:
    assert 0 < seconds_of(out) < 600
    (out / "spent.json").write_text('{"seconds": 1000.0}')
    assert run("sweep", write_study(folder), "--out", out)[0] == 0
    assert 1000 <= seconds_of(out) < 1100


def test_a_changed_study_is_refused(run: Run, folder: Path, out: Path, tmp_path: Path) -> None:
    changed = write_study(tmp_path, ("[0.01, 0.03]", "[0.01, 0.04]"))
    refused(
        run("sweep", changed, "--out", out), "has changed since it was started", "train.lr (was [0.01, 0.03], now [0.01, 0.04])"
    )
    refused(run("sweep", folder / "tiny.toml", "--out", out, "--set", "train.clip=2"), "train.clip (was 10.0, now 2.0)")
    refused(run("sweep", "quick", "--out", out), "holds the study 'tiny', not 'quick'")


def test_asked_trained_and_told(run: Run, folder: Path, tmp_path: Path) -> None:
    study, out = write_study(tmp_path, ("seeds = [3]", "seeds = []")), prepared(tmp_path / "out")
    status, shown, _ = run("sweep", "ask", study, 3, "--out", out)
    assert status == 0
    (tmp_path / "trials.json").write_text(shown)
    status, shown, complaint = run("sweep", study, "--out", out, "--json")
    assert status == 1
    assert "3 trials were asked for elsewhere and not told of yet" in complaint
    assert [arm["used"]["open"] for arm in json.loads(shown)["arms"]] == [2, 1]
    assert json.loads(run("sweep", "ask", study, "--out", out, "--again")[1])[0]["name"] == "vanilla-trial-0000"
    assert run("train", "--fleet", tmp_path / "trials.json", "--out", tmp_path / "runs", "--at-once", 3)[0] == 0
    status, shown, _ = run("sweep", "tell", tmp_path / "runs", "--out", out, "--json")
    assert [entry["outcome"] for entry in json.loads(shown)] == ["counted"] * 3
    assert run("sweep", "tell", tmp_path / "runs", "--out", out)[1].count("counted before") == 3
    assert (out / "best-vanilla.toml").exists()
    refused(run("sweep", "ask", study, 1, "--out", out), "there is no trial to ask for")
    assert run("sweep", study, "--out", out)[0] == 0


def test_winners_are_trained_from_any_folder_also_after_a_tell(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is a folder beside the study, which both name without its path."""
    (tmp_path / "studies").mkdir()
    write_study(tmp_path / "studies", ("seeds = [3]", "seeds = []"), ("[0.01, 0.03]", "[0.01]"))
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path / "out")
    (tmp_path / "trials.json").write_text(run("sweep", "ask", "studies/tiny.toml", 2, "--out", "out")[1])
    assert run("train", "--fleet", "trials.json", "--out", "runs")[0] == 0
    assert run("sweep", "tell", "runs", "--out", "out")[0] == 0
    monkeypatch.chdir(tmp_path / "runs")
    status, shown, _ = run("train", "--recipe", tmp_path / "out" / "best-kn.toml", "--out", tmp_path / "again", "--json")
    assert status == 0
    told = json.loads((tmp_path / "runs" / "kn-trial-0000" / "record.json").read_text())
    assert json.loads(shown)["best"] == told["best"]
    assert run("sweep", tmp_path / "studies" / "tiny.toml", "--out", tmp_path / "out")[0] == 0


def test_a_database_that_is_gone_or_whose_password_is_not_kept(run: Run, folder: Path, out: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    note = json.loads((out / "sweep.json").read_text())
    (copy / "sweep.json").write_text(json.dumps(note))
    refused(run("sweep", "show", copy), "sweep.db is missing")
    assert [path.name for path in copy.iterdir()] == ["sweep.json"], "showing makes no database"
    for odd in ("[1]", "null", "3", "{", '{"study": "s", "storage": 5}', '{"storage": null}'):
        (copy / "sweep.json").write_text(odd)
        for command in (["show", copy], ["tell", copy, "--out", copy], [folder / "tiny.toml", "--out", copy]):
            refused(run("sweep", *command), "sweep.json: not ", "must not be changed")
    for url in (f"sqlite:///{tmp_path / 'nowhere.db'}", f"sqlite:///{tmp_path / 'empty.db'}"):
        refused(run("sweep", "show", url), ".db holds no study; varsmooth sweep starts one")
        assert not (tmp_path / "nowhere.db").exists()
        (tmp_path / "empty.db").touch()
    assert (tmp_path / "empty.db").read_bytes() == b"", "nothing is made in a database to look into it"
    (copy / "sweep.json").write_text(json.dumps({**note, "storage": "postgresql://me:***@host/db"}))
    refused(run("sweep", "show", copy), "the password is not kept", "--storage")
    refused(run("sweep", "tell", copy, "--out", copy), "the password is not kept", "--storage")
    refused(run("sweep", folder / "tiny.toml", "--out", out, "--storage", "postgresql://h/d"), "a database of its own, not")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quik", "--out", "OUT"], ["unknown study 'quik'", "'quick'"]),
        (["missing.toml", "--out", "OUT"], ["missing.toml", "cannot be read"]),
        (["quick", "--out", "OUT", "--at-once", "0"], ["--at-once", "at least 1"]),
        (["quick", "--out", "OUT", "--storage", "mysql://host/db"], ["--storage", "postgresql://"]),
        (["quick", "--out", "OUT", "--set", "train.steps=3"], ["train.steps", "budget"]),
        (["quick", "--out", "OUT", "--set", "train.lr=0.009"], ["--set train.lr: the study searches over it"]),
        (["quick", "--out", "OUT", "--grace", "0"], ["--grace"]),
        (["show", "OUT"], ["not the folder of a sweep"]),
        (["tell", "OUT", "--out", "OUT"], ["not the folder of a sweep"]),
    ],
)
def test_bad_input_is_one_line(arguments: list[Any], words: list[str], run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(run("sweep", *(str(out) if part == "OUT" else part for part in arguments)), *words)
    assert not out.exists()


def test_a_folder_of_something_else_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    refused(run("sweep", "quick", "--out", tmp_path), "is not empty and holds no sweep")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_database_that_is_down_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varsmooth.sweep.storage.WAITS", (0.0, 0.0))
    url = "postgresql://me:secret@127.0.0.1:1/none"
    status, shown, complaint = run("sweep", "quick", "--out", tmp_path / "out", "--storage", url)
    waiting, last = complaint.splitlines()
    assert "trying again" in waiting, "once, however often it is tried"
    refused((status, shown, f"{last}\n"), "me:***@127.0.0.1:1/none", "the database does not answer", "nothing is lost")
    assert "secret" not in complaint
    assert not (tmp_path / "out").exists()


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varsmooth.cli.sweep_processes.default_workers", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [environment_for(number)["OMP_NUM_THREADS"] for number in (1, 3, 20)] == ["8", "2", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment_for(3)["OMP_NUM_THREADS"] == "5"


def test_a_study_on_a_machine_without_optuna(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    refused(run("sweep", "quick", "--out", tmp_path / "out"), "pip install 'varsmooth[sweep]'", "train --fleet")


def test_a_folder_that_another_worker_is_starting_is_joined(run: Run, tmp_path: Path) -> None:
    study, out = write_study(tmp_path, ("seeds = [3]", "seeds = []"), ("[0.01, 0.03]", "[0.01]")), prepared(tmp_path / "out")
    (out / "sweep.db-journal").touch()
    (out / ".sweep.json.x.tmp").touch()
    assert run("sweep", study, "--out", out)[0] == 0
