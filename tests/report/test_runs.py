from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import MakeRun, record
from varsmooth.config import flat_config
from varsmooth.errors import InputError
from varsmooth.report import load_run
from varsmooth.report.runs import group_runs
from varsmooth.train.folder import RunFolder


def write_record(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "record.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_run_says_what_its_files_say(make_run: MakeRun) -> None:
    run = make_run("kneser-ney", 7, curve=[(40, 200.5), (80, 120.25)])
    assert (run.recipe, run.seed, run.status, run.finished) == ("kneser-ney", 7, "finished", True)
    assert run.best_valid == 95.0
    assert run.metrics[1] == {"step": 80, "valid_perplexity": 120.25}
    assert run.curve == [(40, 200.5), (80, 120.25)]


def test_a_run_without_metrics_has_no_curve(make_run: MakeRun) -> None:
    run = make_run(status="running", best=None)
    assert run.metrics == []
    assert run.curve == []
    assert run.best_valid is None


def no_locks(*_: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_run_is_running_as_long_as_a_process_writes_in_its_folder(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = make_run(status="running", best=None)
    assert killed.status == "stopped", "it could not say so itself"
    (killed.path / "config.toml").touch()
    with RunFolder.open(killed.path, lock=True):
        assert load_run(killed.path).status == "running"
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        assert load_run(killed.path).status == "running", "where locks cannot be asked, it is taken at its word"
    assert load_run(killed.path).status == "stopped", "and reading has left no lock behind"
    with RunFolder.open(killed.path, lock=True):
        pass


def test_a_half_written_last_line_is_not_read_yet(make_run: MakeRun) -> None:
    run = make_run(curve=[(40, 200.0)])
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 80, "valid_perp')
    assert load_run(run.path).curve == [(40, 200.0)]


def test_values_that_are_not_finite_stay_out_of_the_curve(make_run: MakeRun) -> None:
    assert make_run(curve=[(40, 200.0), (80, float("inf")), (120, float("nan"))]).curve == [(40, 200.0)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a record of a run"),
        ({"format": "other"}, "format 'other', expected 'varsmooth.record.1'"),
        (record("vanilla", 1) | {"seed": "one"}, "seed must be a whole number, got 'one'"),
        (record("vanilla", 1) | {"seed": True}, "seed must be a whole number"),
        (record("vanilla", 1) | {"recipe": None}, "recipe must be text"),
        (record("vanilla", 1, config=[1]), "config must be an object"),
        (record("vanilla", 1, best={"step": 1, "valid_perplexity": "low"}), "best.valid_perplexity must be a number"),
        (record("vanilla", 1, results=[{"split": "test"}]), "predict must be text, got None"),
        (
            record("vanilla", 1, results=[{"split": "test", "predict": "mode", "tuned_temperature": False}]),
            "perplexity is missing",
        ),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, content: Any, complaint: str) -> None:
    folder = write_record(tmp_path / "run", content)
    with pytest.raises(InputError, match=r"record\.json(, result 1)?: ") as caught:
        load_run(folder)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["{", "7", '{"step": "x"}', '{"step": 1, "valid_perplexity": "low"}'])
def test_a_bad_metrics_line_is_named_by_number(make_run: MakeRun, line: str) -> None:
    run = make_run(curve=[(40, 200.0)])
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: "):
        load_run(run.path)


def test_folders_that_are_no_runs_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "record.json").mkdir(parents=True)
    for name in ("missing", "empty", "file", "odd"):
        with pytest.raises(InputError, match=f"{name}: not a run folder"):
            load_run(tmp_path / name)
    write_record(tmp_path / "bytes", "")
    (tmp_path / "bytes" / "record.json").write_bytes(b"{\xff}")
    with pytest.raises(InputError, match="not UTF-8 at byte 1, in line 1"):
        load_run(tmp_path / "bytes")


def test_control_characters_do_not_reach_the_terminal(make_run: MakeRun) -> None:
    assert make_run("red\x1b[31m\nname\ud800").recipe == "red\ufffd[31m\ufffdname\ufffd"


def test_runs_that_differ_by_seed_alone_form_a_group(make_run: MakeRun) -> None:
    third, first, other = make_run(seed=3), make_run(seed=1), make_run("element-wise")
    groups = group_runs([third, other, first, third])
    assert [(group.label, [run.seed for run in group.runs]) for group in groups] == [("vanilla", [1, 3]), ("element-wise", [1])]


def test_groups_of_one_recipe_are_told_apart_by_what_differs(make_run: MakeRun) -> None:
    runs = [make_run(config={"train": {"lr": lr, "seed": 1}, "model": {"hidden": 64}}) for lr in (0.003, 0.004)]
    assert [group.label for group in group_runs(runs)] == ["vanilla (train.lr=0.003)", "vanilla (train.lr=0.004)"]


def test_where_and_how_a_run_was_made_does_not_tell_groups_apart(make_run: MakeRun) -> None:
    makings = [{"engine": "graph", "device": "cuda"}, {"engine": "eager", "threads": 2, "save_every": 7}]
    runs = [make_run(seed=seed, config={"train": {"seed": seed, **own}}) for seed, own in enumerate(makings)]
    assert [len(group.runs) for group in group_runs(runs)] == [2]


def test_copies_of_a_data_set_never_mix(make_run: MakeRun) -> None:
    data = record("vanilla", 1)["data"]
    here, moved = (make_run(seed=seed, data=data | {"name": name}) for seed, name in enumerate(("/here/text", "/there/text")))
    differing = make_run(seed=2, data=data | {"name": "text", "vocab_checksum": "0123456789"})
    groups = group_runs([here, moved, differing])
    assert [(group.data, len(group.runs)) for group in groups] == [("text abc", 2), ("text 01234567", 1)]


def test_copies_are_told_apart_by_the_first_text_in_which_they_differ(make_run: MakeRun) -> None:
    data = record("vanilla", 1)["data"]
    runs = [make_run(data=data | {"checksums": {"train": "same", "test": test}}) for test in ("one", "two")]
    name = data["name"]
    assert [group.data for group in group_runs(runs)] == [f"{name} one", f"{name} two"]


def test_settings_are_flattened_under_dotted_names() -> None:
    assert flat_config({"name": "x", "train": {"lr": 1, "deep": {"er": 2}}}) == {"name": "x", "train.lr": 1, "train.deep.er": 2}
