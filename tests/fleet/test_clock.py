"""The time that a fleet has: the clock's arithmetic with a time of its own, then fleets whose steps take a second each."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from networks_for_tests import tiny_config
from varsmooth import InputError
from varsmooth.experiment import Reporting
from varsmooth.fleet import TimeLimit, Trial, clock, driver, resume_fleet, start_fleet
from varsmooth.fleet.clock import MARGIN, Clock
from varsmooth.fleet.trials import seconds_of
from varsmooth.train.folder import RunFolder
from varsmooth.train.trainer import Trainer

QUIET = Reporting(Console(quiet=True))


class Time:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_without_a_limit_everything_fits_at_any_time():
    time = Time()
    unlimited = Clock(None, time)
    time.seconds += 1e9
    assert not unlimited.up
    assert unlimited.fits(10**9, [10**9])


def test_one_run_may_try_until_a_pace_is_known():
    limited = Clock(TimeLimit(1), Time())
    assert limited.fits(10**9, [])
    assert not limited.fits(1, [5])


def test_what_fits_is_reckoned_with_the_turns_of_the_others_and_the_evaluation():
    time = Time()
    limited = Clock(TimeLimit(10), time)
    time.seconds += 10
    limited.stepped(1000)  # 10 ms a step; 590 s are left
    most = 590 / MARGIN / 0.01
    assert limited.fits(int(most) - 1, [])
    assert not limited.fits(int(most) + 1, [])
    assert limited.fits(int(most / 2) - 1, [10**9]), "the other takes as many steps meanwhile"
    assert not limited.fits(int(most / 2) + 1, [10**9])
    assert limited.fits(int(most) - 11, [10])
    limited.evaluated(100.0)
    assert not limited.fits(int(most) - 1, [])
    assert limited.fits(int(most) - 10_001, [])
    limited.evaluated(1.0)
    assert not limited.fits(int(most) - 1, []), "the longest counts"


def test_the_pace_is_that_of_the_last_seconds():
    time = Time()
    limited = Clock(TimeLimit(10), time)
    time.seconds += 60  # compiling
    limited.stepped(20)
    assert not limited.fits(10_000, [])
    for _ in range(40):
        time.seconds += 1
        limited.stepped(100)
    assert limited.fits(10_000, [])


def test_time_is_up_and_more_can_be_begun_where_the_fleet_will_be_resumed():
    time = Time()
    once, resumed = Clock(TimeLimit(1), time), Clock(TimeLimit(1, within=3), time)
    time.seconds += 10
    for each in (once, resumed):
        each.stepped(1000)
    assert [each.fits(10_000, []) for each in (once, resumed)] == [False, True]
    time.seconds += 50
    assert once.up
    assert resumed.up
    assert not resumed.fits(1, []), "not now"


def test_what_is_left_of_a_limit():
    assert TimeLimit(9, within=25).after(180) == TimeLimit(6, within=22)
    left = TimeLimit(2).after(60)
    assert (left.minutes, left.within) == (1, 1), "without more time, none is taken for granted"
    assert 0 < TimeLimit(1, within=3).after(120).minutes < 1e-6, "used up"


@pytest.mark.parametrize(("values", "flag"), [((0,), "--minutes"), ((float("nan"),), "--minutes"), ((1, -1), "--within")])
def test_limits_that_make_no_sense_are_refused(values, flag):
    with pytest.raises(InputError, match=f"{flag} must be a number above 0"):
        TimeLimit(*values)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Each training step takes a second."""
    now, step = Time(), Trainer.step

    def timed(self: Trainer) -> Any:
        now.seconds += 1
        return step(self)

    monkeypatch.setattr(Trainer, "step", timed)
    monkeypatch.setattr(driver, "Clock", lambda limit: Clock(limit, now))
    monkeypatch.setattr(clock, "KNOWN", 3)
    return now


def fleet(number: int, steps: int) -> list[Trial]:
    common = (f"train.steps={steps}", "train.eval_every=4", "data.max_tokens=400")
    return [Trial(f"run-{seed}", tiny_config("vanilla", *common, f"train.seed={seed}")) for seed in range(number)]


@pytest.mark.usefixtures("time")
def test_no_run_is_begun_that_would_not_end_and_the_next_call_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    limit = TimeLimit(26 / 60)
    outcome = start_fleet(fleet(4, 10), tmp_path / "f", QUIET, limit=limit, ended=lambda trial, _: told.append(trial.name))
    assert [record["status"] for record in outcome.records] == ["finished", "finished", "not started", "not started"]
    assert (outcome.out_of_time, outcome.signal) == (True, None)
    assert told == ["run-0", "run-1"], "as they ended"
    again = resume_fleet(tmp_path / "f", QUIET, limit=limit)
    assert [record["status"] for record in again.records] == ["finished"] * 4
    assert not again.out_of_time
    before = seconds_of(tmp_path / "f")
    resume_fleet(tmp_path / "f", QUIET)
    assert seconds_of(tmp_path / "f") >= before > 0, "of all calls"


@pytest.mark.usefixtures("time")
def test_what_is_under_way_is_saved_and_comes_first_in_the_next_call(tmp_path: Path) -> None:
    trials = fleet(3, 10)
    outcome = start_fleet(trials, tmp_path / "f", QUIET, limit=TimeLimit(15 / 60, within=100))
    assert [(record["status"], record.get("steps")) for record in outcome.records] == [
        ("finished", 10),
        ("stopped", 8),  # its turn is four steps
        ("not started", None),
    ]
    assert outcome.out_of_time
    record = RunFolder(tmp_path / "f" / "run-1").read_record()
    assert (record["stopped_because"], "signal" in record) == ("time", False)
    # The third could be begun first; the second is half done and is gone on with.
    again = resume_fleet(tmp_path / "f", QUIET, limit=TimeLimit(9 / 60, within=100))
    assert [record["status"] for record in again.records] == ["finished", "finished", "stopped"]
    assert not resume_fleet(tmp_path / "f", QUIET).out_of_time
    whole = start_fleet(trials[1:2], tmp_path / "whole", QUIET)
    assert whole.records[0]["results"] == again.records[1]["results"]


def test_a_signal_is_not_taken_for_the_end_of_the_time(tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.step

    def signalled(self: Trainer) -> Any:
        if time.seconds == 110:  # in the turn of the second, at whose end the time is up and the first is yet to end
            signal.raise_signal(signal.SIGTERM)
        return step(self)

    monkeypatch.setattr(Trainer, "step", signalled)
    outcome = start_fleet(fleet(2, 10), tmp_path / "f", QUIET, at_once=2, limit=TimeLimit(10.5 / 60, within=100))
    assert (outcome.signal, outcome.out_of_time) == (signal.SIGTERM, False)
    ended = [(record["status"], record["stopped_because"], record["signal"]) for record in outcome.records]
    assert ended == [("stopped", "signal", signal.SIGTERM)] * 2


def test_a_run_that_has_only_to_be_evaluated_is_not_stopped(tmp_path: Path, time: Time) -> None:
    outcome = start_fleet(fleet(1, 10), tmp_path / "f", QUIET, limit=TimeLimit(10 / 60))
    assert time.seconds == 110.0
    assert outcome.records[0]["status"] == "finished"
    assert not outcome.out_of_time


def test_the_first_run_alone_until_the_pace_is_known_then_side_by_side(tmp_path: Path, time, monkeypatch) -> None:
    order, step = [], Trainer.step

    def watched(self: Trainer) -> Any:
        order.append(self.settings.seed)
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    start_fleet(fleet(2, 12), tmp_path / "f", QUIET, at_once=2, limit=TimeLimit(60))
    assert order == [0] * 4 + ([0] * 4 + [1] * 4) * 2 + [1] * 4


def test_slow_steps_have_a_pace_too():
    time = Time()
    limited = Clock(TimeLimit(10), time)
    for _ in range(100):
        time.seconds += 1
        limited.stepped(1)
    assert limited.fits(400, [])
    assert limited.fits(200, [200])
    assert not limited.fits(500, [])
