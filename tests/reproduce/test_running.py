"""The whole way on a tiny corpus: what is missing is trained, records are kept, and the page needs nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from varsmooth import InputError
from varsmooth.experiment import Reporting
from varsmooth.fleet import FleetOutcome
from varsmooth.fleet.clock import Clock
from varsmooth.reproduce import (
    collect,
    corpus_plan,
    experiment_jobs,
    missing_jobs,
    named_experiments,
    read_chosen,
    run_jobs,
    running,
    table_jobs,
)
from varsmooth.reproduce.running import _Spent, borrow
from varsmooth.train.trainer import Trainer

QUIET = Reporting(Console(quiet=True))
ROWS = "vanilla,noising-kneser-ney"


def options(tmp_path: Path, data: Path) -> list[object]:
    return ["--data-dir", data, "--out", tmp_path / "out", "--results", tmp_path / "results"]


def test_what_is_missing_is_trained_once_and_the_page_needs_neither_data_nor_runs(run, tmp_path, data, steps):
    common = options(tmp_path, data)
    dry = json.loads(run("reproduce", "ptb", "--rows", ROWS, "--seeds", "1,2", *common, "--dry-run", "--json")[1])
    assert (dry["planned"], len(dry["missing"]), dry["steps"]) == (4, 4, 24)
    status, shown, told = run("reproduce", "ptb", "--rows", ROWS, "--seeds", "1", *common)
    assert status == 0, told
    assert len(steps) == 12
    folder = tmp_path / "results" / "ptb" / "512-paper"
    assert sorted(path.name for path in folder.iterdir()) == ["noising-kneser-ney-seed1", "vanilla-seed1"]
    text = (folder / "noising-kneser-ney-seed1" / "record.json").read_text()
    assert str(tmp_path) not in text, "no path of this machine"
    record = json.loads(text)
    assert (record["config"]["data"]["name"], record["config"]["data"]["data_dir"]) == ("ptb", "")
    assert sum(found["predict"] == "sample" for found in record["results"]) == 4, "as in the paper, with 20 draws"
    assert (folder / "vanilla-seed1" / "metrics.jsonl").read_text().count("\n") >= 1
    test = next(found for found in record["results"] if (found["split"], found["predict"]) == ("test", "mode"))
    assert f"{test['perplexity']:,.2f}" in shown

    assert run("reproduce", "ptb", "--rows", ROWS, "--seeds", "1,2", *common)[0] == 0
    assert steps[12:] == [2] * 12, "seed 1 has its records"
    (spent, again) = (json.loads(line) for line in (tmp_path / "results/ptb/spent.jsonl").read_text().splitlines())
    assert (spent["runs"], spent["finished"], again["finished"]) == (2, 2, 2)

    page = (tmp_path / "out" / "page.md").read_bytes()
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(data)
    results = ["--out", tmp_path / "out", "--results", tmp_path / "results"]
    assert run("reproduce", "ptb", "--from-records", *results)[0] == 0
    assert (tmp_path / "out" / "page.md").read_bytes() == page
    whole = json.loads(run("reproduce", "ptb", "--rows", ROWS, "--seeds", "1,3", "--from-records", *results, "--json")[1])
    assert whole["missing"] == ["512-paper-vanilla-seed3", "512-paper-noising-kneser-ney-seed3"]
    assert len(steps) == 24


def test_runs_that_finished_before_a_kill_leave_their_records_and_the_others_go_on(tmp_path, data, steps, monkeypatch):
    plan, chosen = corpus_plan("ptb"), read_chosen(tmp_path / "absent")
    jobs = table_jobs(plan, chosen, size=512, rows=["vanilla"], seeds=[1, 2])
    out, results = tmp_path / "out", tmp_path / "results"
    train = Trainer.step

    def killed(self: Trainer) -> object:
        if self.settings.seed == 2 and self.progress.step == 3:
            raise KeyboardInterrupt
        return train(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs, out, results, QUIET, data_dir=data)
    assert [job.name for job in missing_jobs(jobs, results)] == ["vanilla-seed2"]
    shutil.rmtree(results)
    assert [job.name for job in collect(jobs, out, results)] == ["vanilla-seed1"]
    steps.clear()
    outcome = run_jobs(jobs, out, results, QUIET, data_dir=data)
    assert [record["status"] for record in outcome.records] == ["finished"]
    assert set(steps) == {2}
    assert missing_jobs(jobs, results) == []


def test_a_record_is_kept_as_its_run_ends_and_so_is_the_time_spent(tmp_path, data, steps, monkeypatch):
    jobs = table_jobs(corpus_plan("ptb"), read_chosen(tmp_path / "absent"), size=512, rows=["vanilla"], seeds=[1, 2])
    results, found, train = tmp_path / "results", [], Trainer.step

    def watched(self: Trainer) -> object:
        if self.settings.seed == 2:
            spent = (results / "ptb" / "spent.jsonl").read_text()
            found.append(([job.name for job in missing_jobs(jobs, results)], json.loads(spent)["finished"]))
        return train(self)

    monkeypatch.setattr(Trainer, "step", watched)
    run_jobs(jobs, tmp_path / "out", results, QUIET, data_dir=data)
    assert found == [(["vanilla-seed2"], 1)] * 6
    (line,) = (json.loads(line) for line in (results / "ptb" / "spent.jsonl").read_text().splitlines())
    assert (line["finished"], line["runs"], line["groups"]) == (2, 2, ["512-paper"])


@pytest.fixture
def a_minute_a_step(monkeypatch):
    """A clock that stands still but for the steps."""
    passed = [0.0]
    train = Trainer.step

    def timed(self: Trainer) -> object:
        passed[0] += 60
        return train(self)

    monkeypatch.setattr(Trainer, "step", timed)
    monkeypatch.setattr("varsmooth.fleet.driver.Clock", lambda limit: Clock(limit, lambda: passed[0]))
    monkeypatch.setattr("varsmooth.reproduce.running.monotonic", lambda: passed[0])


def test_time_that_is_up_ends_it_with_status_0_and_the_same_command_goes_on(run, tmp_path, data, steps, a_minute_a_step):
    arguments = ["reproduce", "ptb", "--rows", "vanilla", "--seeds", "1,2", *options(tmp_path, data), "--minutes", "8"]
    status, _, told = run(*arguments, "--within", "99")
    assert status == 0
    assert "the time is up, 1 runs are left; the same command goes on" in told
    kept = tmp_path / "results" / "ptb" / "512-paper"
    assert [path.name for path in kept.iterdir()] == ["vanilla-seed1"]
    assert json.loads((tmp_path / "out/fleet/512-paper-vanilla-seed2/record.json").read_text())["stopped_because"] == "time"
    status, _, told = run(*arguments)
    assert (status, "time is up" in told) == (0, False)
    assert sorted(path.name for path in kept.iterdir()) == ["vanilla-seed1", "vanilla-seed2"]
    assert steps == [1] * 6 + [2] * 6, "nothing twice"
    assert sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) < 100_000, "what is kept is small"


def test_values_that_have_changed_make_a_record_stale_and_its_run_is_not_gone_on_with(tmp_path, data, steps):
    plan, path = corpus_plan("ptb"), tmp_path / "chosen.toml"
    out, results = tmp_path / "out", tmp_path / "results"
    jobs = table_jobs(plan, read_chosen(path), size=512, rows=["vanilla"], seeds=[1])
    run_jobs(jobs, out, results, QUIET, data_dir=data)
    path.write_text('format = "varsmooth.chosen.1"\n[paper.512.vanilla]\nset = {"train.lr" = 0.004}\n')
    jobs = table_jobs(plan, read_chosen(path), size=512, rows=["vanilla"], seeds=[1])
    assert missing_jobs(jobs, results) == jobs
    with pytest.raises(InputError, match=r"512-paper-vanilla-seed1 was begun with another train\.lr; remove that folder"):
        run_jobs(jobs, out, results, QUIET, data_dir=data)
    run_jobs(jobs, tmp_path / "other", results, QUIET, data_dir=data)
    assert missing_jobs(jobs, results) == []


def test_a_run_that_fails_is_named_and_has_no_record(run, tmp_path, data, steps, monkeypatch):
    def broken(self: Trainer) -> object:
        raise InputError("no luck")

    monkeypatch.setattr(Trainer, "step", broken)
    status, _, told = run("reproduce", "ptb", "--rows", "vanilla", "--seeds", "1", *options(tmp_path, data))
    assert status == 1
    assert "512-paper-vanilla-seed1 failed: no luck" in told
    assert not (tmp_path / "results" / "ptb" / "512-paper").exists()


def test_the_best_of_an_experiments_trials_is_run_in_full_by_the_same_call(run, tmp_path, data, steps, two_rounds):
    arguments = ["reproduce", "ptb", "--experiment", "data-size", *options(tmp_path, data)]
    assert run(*arguments)[0] == 0
    assert steps == [11] * 12 + [1] * 6 + [2] * 6
    kept = tmp_path / "results" / "ptb" / "data-size"
    trials = [f"vanilla-0.5-v{number}-seed11" for number in (1, 2)]
    assert sorted(path.name for path in kept.iterdir()) == ["vanilla-0.5-v1-final-seed1", "vanilla-0.5-v1-final-seed2", *trials]
    results = {path.parent.name: json.loads(path.read_text())["results"] for path in kept.glob("*/record.json")}
    assert [bool(results[name]) for name in ("vanilla-0.5-v1-final-seed1", *trials)] == [True, False, False]
    status, told, _ = run(*arguments, "--dry-run", "--json")
    assert (status, json.loads(told)["missing"], json.loads(told)["planned"]) == (0, [], 4)
    assert run(*arguments, "--seeds", "5")[0] == 0
    assert steps[24:] == [5] * 6, "a seed that is given is one of the final runs"


def test_trials_that_were_cut_short_are_not_followed_by_final_runs(run, tmp_path, data, steps, two_rounds, a_minute_a_step):
    arguments = ["reproduce", "ptb", "--experiment", "data-size", *options(tmp_path, data), "--within", "99"]
    assert "the time is up, 1 runs are left" in run(*arguments, "--minutes", "8")[2]
    assert set(steps) == {11}
    assert len(steps) < 12
    told = run(*arguments, "--minutes", "6")[2]
    assert "the time is up, 2 runs are left" in told, "the final runs have what the trials left of six minutes, not six more"
    assert run(*arguments, "--minutes", "99")[0] == 0
    assert steps == [11] * 12 + [1] * 6 + [2] * 6, "nothing twice"


@pytest.mark.parametrize(("signal", "rounds"), [(None, [["trial"], ["final"]]), (2, [["trial"]])])
def test_after_a_signal_no_other_round_begins_but_what_has_ended_is_settled(tmp_path, monkeypatch, signal, rounds):
    trained, settled = [], []
    monkeypatch.setattr(running, "run_jobs", lambda jobs, **_: trained.append(jobs) or FleetOutcome([], signal))

    def planned():
        return ["trial", "final"][: 1 + (["trial"] in settled)]

    def settle():
        settled.extend(trained[len(settled) :])

    assert running.run_rounds(planned, settle, tmp_path, tmp_path, QUIET).signal == signal
    assert trained == settled == rounds


def test_what_had_ended_before_is_settled_first(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run_jobs", pytest.fail)
    settled = []
    assert running.run_rounds(list, lambda: settled.append(1), tmp_path, tmp_path, QUIET) == FleetOutcome([], None)
    assert settled == [1]


def test_an_experiment_on_a_share_of_the_text(run, tmp_path, data, steps, monkeypatch):
    monkeypatch.setattr("varsmooth.reproduce.experiments._point_values", lambda *_: {})
    monkeypatch.setitem(
        named_experiments(), "data-size", replace(named_experiments()["data-size"], corpora=("ptb", "wikitext-2"))
    )
    jobs_of = sum(len(arm.variants_at(place)) for arm in named_experiments()["data-size"].arms for place in range(4))
    listed = json.loads(
        run("reproduce", "ptb", "--experiment", "data-size", *options(tmp_path, data), "--dry-run", "--json")[1]
    )
    assert listed["planned"] == jobs_of
    jobs = [
        job
        for job in experiment_jobs(named_experiments()["data-size"], "ptb", read_chosen(tmp_path / "no"))
        if job.share == 0.5
    ]
    run_jobs(jobs[:1], tmp_path / "out", tmp_path / "results", QUIET, data_dir=data)
    text = (tmp_path / "results" / "ptb" / "data-size" / "vanilla-0.5-v1-seed11" / "record.json").read_text()
    assert str(tmp_path) not in text
    tokens = json.loads(text)["data"]["tokens"]
    assert (tokens["train"], tokens["test"]) == (30 * 7, 15 * 7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pbt"], ["did you mean 'ptb'"]),
        (["ptb", "--size", "513"], ["--size", "513"]),
        (["ptb", "--rows", "vanila"], ["did you mean 'vanilla'"]),
        (["ptb", "--rows", ","], ["--rows"]),
        (["ptb", "--seeds", "1,x"], ["--seeds"]),
        (["ptb", "--minutes", "0"], ["--minutes must be a number above 0"]),
        (["ptb", "--within", "5"], ["--within goes with --minutes"]),
        (["ptb", "--experiment", "gama"], ["did you mean 'gamma'"]),
        (["wikitext-2", "--experiment", "gamma"], ["--experiment", "data-size"]),
        (["ptb", "--points", "0.1"], ["--points goes with an --experiment"]),
        (["ptb", "--choose-from", ".", "--points", "0.1"], ["--choose-from does not go with --points"]),
        (["ptb", "--experiment", "gamma", "--points", "x"], ["--points takes numbers", "'x'"]),
        (["ptb", "--experiment", "gamma", "--points", "0.15"], ["--points: 0.15 is no point of gamma"]),
        (["ptb", "--setting", "tuned"], ["chosen.toml", "tuned.512"]),
        (["ptb", "--data-dir", "absent"], ["ptb was not found", "absent"]),
        (["ptb", "--from-records"], ["--results results/reproduce: there is no such folder"]),
        (["ptb", "--from-records", "--results", ".", "--write-docs"], ["README.md"]),
    ],
)
def test_bad_flags_get_one_line(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VARSMOOTH_DATA", raising=False)
    status, shown, told = run("reproduce", *arguments)
    assert (status, shown, told.count("\n")) == (2, "", 1)
    for word in words:
        assert word in told


def test_a_run_that_another_table_has_is_not_trained_again(run, tmp_path, data, steps):
    tuned = tmp_path / "chosen.toml"
    tuned.write_text('format = "varsmooth.chosen.1"\n[tuned.512.vanilla]\nset = {"train.lr" = 0.004}\n')
    plan, nothing = corpus_plan("ptb"), read_chosen(tmp_path / "absent")
    out, results = tmp_path / "out", tmp_path / "results"
    run_jobs(
        table_jobs(plan, read_chosen(tuned), size=512, setting="tuned", rows=["vanilla"]), out, results, QUIET, data_dir=data
    )
    tuned.write_text(tuned.read_text().replace("tuned.512", "paper.512"))
    jobs = table_jobs(plan, read_chosen(tuned), size=512, rows=["vanilla"], seeds=[1, 2])
    alone = experiment_jobs(named_experiments()["alone"], "ptb", read_chosen(tuned), arms=["vanilla"])
    assert len(steps) == 18
    (results / "ptb" / "chosen.toml").write_text(tuned.read_text())
    dry = json.loads(run("reproduce", "ptb", "--rows", "vanilla", *options(tmp_path, data), "--dry-run", "--json")[1])
    assert dry == {"planned": 3, "missing": [], "steps": 0, "waiting": 0}
    assert len(missing_jobs(jobs, results)) == 2, "a dry run copies nothing"
    run_jobs(jobs, out, results, QUIET, data_dir=data)
    assert (missing_jobs(jobs, results), len(steps)) == ([], 18)
    for name in ("record.json", "metrics.jsonl"):
        theirs = results / "ptb" / "512-tuned" / "vanilla-seed2" / name
        assert (jobs[1].record_folder(results) / name).read_bytes() == theirs.read_bytes()
    other = table_jobs(plan, nothing, size=512, rows=["vanilla"], seeds=[1])
    assert borrow(other, results) == [], "of other values"
    assert borrow([replace(jobs[0], group="data-size", share=0.5)], results) == [], "of half the text"
    run_jobs(alone, out, results, QUIET, data_dir=data)
    assert len(steps) == 24, "its time is what is asked for"


def test_a_record_that_is_there_stays_as_it_is(tmp_path, data, steps):
    jobs = table_jobs(corpus_plan("ptb"), read_chosen(tmp_path / "absent"), size=512, rows=["vanilla"], seeds=[1])
    out, results = tmp_path / "out", tmp_path / "results"
    run_jobs(jobs, out, results, QUIET, data_dir=data)
    path = jobs[0].record_folder(results) / "record.json"
    newer = path.read_text().replace('"commit": ', '"commit": "newer", "was": ')
    path.write_text(newer)
    assert collect(jobs, out, results) == []
    assert path.read_text() == newer
    record = json.loads(newer)
    path.write_text(json.dumps({**record, "config": {**record["config"], "train": {**record["config"]["train"], "lr": 0.5}}}))
    assert [job.name for job in missing_jobs(jobs, results)] == ["vanilla-seed1"]
    assert len(collect(jobs, out, results)) == 1, "of other values: then the run's own is put in its place"


def test_a_copy_that_is_not_the_standard_one_is_refused_before_anything_is_trained(run, tmp_path, data):
    status, _, complaint = run("reproduce", "ptb", "--rows", "vanilla", *options(tmp_path, data))
    assert (status, complaint.count("\n")) == (2, 1)
    assert "train.txt, valid.txt, test.txt is not that of the standard copy" in complaint
    assert not (tmp_path / "out").exists()


def test_sessions_at_the_same_time_each_leave_their_line(tmp_path):
    path = tmp_path / "spent.jsonl"
    jobs = table_jobs(corpus_plan("ptb"), read_chosen(tmp_path / "absent"), size=512, rows=["vanilla"])
    first, second = _Spent(path, jobs), _Spent(path, jobs[:1])
    card = {"hardware": {"name": "a card"}}
    for session, finished in ((first, 1), (second, 1), (first, 2)):
        session.note(finished, card)
    _Spent(path, jobs).note()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["runs"], line["finished"]) for line in lines) == [(1, 1), (3, 3)], "none of one in which nothing ran"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--finalists", 2, "--experiment", "gamma"], "--finalists does not go with --experiment"),
        (["--finalists", 2, "--from-records"], "--finalists does not go with --from-records"),
        (["--finalists", 2, "--seeds", "1"], "--finalists does not go with --seeds"),
        (["--choose-from", "x", "--finalists", 2], "--choose-from does not go with --finalists"),
        (["--choose-from", "x", "--rows", "vanilla"], "--choose-from does not go with --rows"),
        (["--choose-from", "x", "--dry-run"], "--choose-from does not go with --dry-run"),
        (["--experiment", "gamma", "--size", 1024], "--experiment does not go with --size or --setting"),
        (["--experiment", "gamma", "--setting", "tuned"], "--experiment does not go with --size or --setting"),
        (["--all", "--setting", "tuned"], "--all does not go with --size or --setting"),
        (["--all", "--experiment", "gamma"], "--experiment does not go with --all"),
        (["--all", "--finalists", 2], "--finalists does not go with --all"),
        (["--all", "--rows", "vanilla"], "--all does not go with --rows"),
        (["--all", "--seeds", "1"], "--all does not go with --seeds"),
        (["--all", "--points", "0.1"], "--points goes with an --experiment"),
    ],
)
def test_flags_that_would_be_passed_over_are_refused(run, tmp_path, flags, message):
    status, _, complaint = run("reproduce", "ptb", *flags, "--results", tmp_path)
    assert (status, complaint.count("\n"), message in complaint) == (2, 1, True), complaint


def test_a_folder_that_cannot_be_used_gets_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    for flags in (["--results", tmp_path / "absent"], ["--results", tmp_path, "--out", tmp_path / "file"]):
        status, _, complaint = run("reproduce", "ptb", "--from-records", *flags)
        assert (status, complaint.count("\n")) == (2, 1), complaint
    status, _, complaint = run("reproduce", "ptb", "--choose-from", tmp_path / "absent", "--results", tmp_path)
    assert (status, "absent: there is no such folder" in complaint) == (2, True)
