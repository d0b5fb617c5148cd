"""Training a fleet: a list of runs, a few of them at a time, refilled as they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from varsmooth.config import Config
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting, Session
from varsmooth.fleet.clock import Clock, TimeLimit
from varsmooth.fleet.crew import Crew
from varsmooth.fleet.trials import FLEET_FILE, Trial, read_list, spending, write_list
from varsmooth.train.build import resolve_device
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder, state_step
from varsmooth.train.folder_lock import FolderLock
from varsmooth.train.record import Record, readable_record

AT_ONCE_ON_GPU, AT_ONCE_ON_CPU = 8, 1
Ended = Callable[[Trial, Record], None]
"""Told of each run as it ends."""


@dataclass(frozen=True)
class FleetOutcome:
    """The records of the runs in the order of the list, each with the run's name, and the signal that ended it, if one did."""

    records: list[Record]
    signal: int | None
    out_of_time: bool = False
    """whether runs were stopped, or not begun, because there was a limit"""

    @property
    def ran_through(self) -> bool:
        """Whether every run came to an end of its own."""
        return self.signal is None and not self.out_of_time

    def followed_by(self, other: FleetOutcome) -> FleetOutcome:
        """Return both as one, the other having come after this one."""
        return FleetOutcome([*self.records, *other.records], other.signal, other.out_of_time)


def start_fleet(
    trials: Sequence[Trial],
    out: Path,
    reporting: Reporting,
    at_once: int | None = None,
    *,
    limit: TimeLimit | None = None,
    ended: Ended | None = None,
) -> FleetOutcome:
    """Train every trial into a folder of its own in ``out``; the list is kept there, so that the fleet can be resumed."""
    number = number_at_once([trial.config for trial in trials], at_once)
    with FolderLock.on_new(out, FLEET_FILE):
        write_list(out, trials)
        return _train(out, trials, reporting, number, limit, ended)


def resume_fleet(
    out: Path,
    reporting: Reporting,
    at_once: int | None = None,
    *,
    limit: TimeLimit | None = None,
    ended: Ended | None = None,
    instead: Sequence[Trial] | None = None,
) -> FleetOutcome:
    """Go on with every run that has not finished, a failed one too, and start those that have not begun.

    ``instead`` takes the place of the list that is kept.
    """
    with FolderLock.on_existing(out, FLEET_FILE):
        if instead is not None:
            write_list(out, instead)
        trials = read_list(out)
        number = number_at_once([trial.config for trial in trials], at_once)
        return _train(out, trials, reporting, number, limit, ended)


def number_at_once(configs: Sequence[Config], wanted: int | None) -> int:
    """How many runs train at the same time; also refuses a device that is not there."""
    if wanted is not None and wanted < 1:
        raise InputError(f"--at-once must be at least 1, got {wanted}")
    usual = AT_ONCE_ON_GPU if any_on_gpu(configs) else AT_ONCE_ON_CPU
    return usual if wanted is None else wanted


def any_on_gpu(configs: Sequence[Config]) -> bool:
    """Whether any of these runs is to train on a GPU."""
    return "cuda" in [resolve_device(config.train.device).type for config in configs]


def _train(
    out: Path,
    trials: Sequence[Trial],
    reporting: Reporting,
    at_once: int,
    limit: TimeLimit | None,
    ended: Ended | None,
) -> FleetOutcome:
    with Screen(reporting.console, sum(trial.config.train.steps for trial in trials)) as screen:
        session = Session(screen, reporting.tensorboard)
        with session.interruptions, spending(out):
            fleet = _Fleet(out, trials, session, at_once, Clock(limit), ended)
            try:
                fleet.train()
            finally:
                fleet.crew.close()
        records, signal = [fleet.record(trial) for trial in trials], session.interruptions.received
        return FleetOutcome(records, signal, out_of_time=signal is None and fleet.cut_short)


class _Fleet:
    """The runs that wait, those under way, and the records of those that are through."""

    def __init__(
        self, path: Path, trials: Sequence[Trial], session: Session, at_once: int, clock: Clock, ended: Ended | None
    ) -> None:
        self.path, self.at_once, self.clock, self.tell = path, at_once, clock, ended
        known = {trial.name: readable_record(path / trial.name) for trial in trials}
        self.records = {name: record for name, record in known.items() if record.get("status") == "finished"}
        self.before = {name: _steps_taken(path / name, record) for name, record in known.items()}
        waiting = [trial for trial in trials if trial.name not in self.records]
        # What was begun comes first, so that few runs are left half done.
        self.waiting = sorted(waiting, key=lambda trial: self.before[trial.name] == 0)
        self.crew = Crew(session, self._ended, min(at_once, len(waiting)))
        self.steps: dict[str, int] = {}
        self.trained: dict[str, float] = {}
        self.cut_short = False
        session.screen.advance_total(sum(t.config.train.steps for t in trials if t.name in self.records))

    def train(self) -> None:
        """Take turns until all have ended, or a signal or the clock has made them save and end."""
        crew = self.crew
        while True:
            self._refill()
            if not crew.members:
                break
            crew.take_turns()
            self._look_at_progress()
            if self.clock.up:
                crew.stop_training()
        self.cut_short = self.cut_short or bool(self.waiting)

    def record(self, trial: Trial) -> Record:
        """Return what is known of a run, whether or not it came to its turn."""
        opening = {"name": trial.name, "recipe": trial.config.name, "seed": trial.config.train.seed, "status": "not started"}
        return {**opening, **(self.records.get(trial.name) or readable_record(self.path / trial.name))}

    def _refill(self) -> None:
        """Begin the runs that wait, as far as there is room for them and time."""
        crew = self.crew
        while self.waiting and len(crew.members) < self.at_once and not crew.stopping:
            left = [member.steps_left for member in crew.members]
            fitting = (t for t in self.waiting if self.clock.fits(t.config.train.steps - self.before[t.name], left))
            trial = next(fitting, None)
            if trial is None:
                return
            self.waiting.remove(trial)
            if not crew.begin(trial, self.path / trial.name):
                self.waiting.insert(0, trial)
            self.steps.update({member.trial.name: member.step for member in crew.members[-1:]})

    def _look_at_progress(self) -> None:
        """Tell the clock how many steps were taken, and note which runs have only to be evaluated."""
        taken = 0
        for member in self.crew.members:
            name = member.trial.name
            taken += member.step - self.steps[name]
            self.steps[name] = member.step
            if not member.steps_left:
                self.trained.setdefault(name, time.monotonic())
        self.clock.stepped(taken)

    def _ended(self, trial: Trial, record: Record) -> None:
        self.records[trial.name] = record
        if trial.name in self.trained:
            self.clock.evaluated(time.monotonic() - self.trained[trial.name])
        self.cut_short = self.cut_short or record.get("stopped_because") == "time"
        if self.tell is not None:
            self.tell(trial, record)


def _steps_taken(path: Path, record: Record) -> int:
    """How far a run has come: a killed one could not write its record, but it left states."""
    states = RunFolder(path).state_paths() if path.is_dir() else []
    return max([int(record.get("steps") or 0), *map(state_step, states[:1])])
