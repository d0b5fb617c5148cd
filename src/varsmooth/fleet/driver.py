"""Training a fleet: its runs take turns, a few steps at a time, and begin, end and fail each on its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from varsmooth.errors import InputError
from varsmooth.experiment import (
    Record,
    Reporting,
    Session,
    Steps,
    advance,
    continued_run,
    failure,
    lane_for,
    new_run,
    record_unbuilt,
)
from varsmooth.fleet.trials import FleetFolder, Trial
from varsmooth.train.build import resolve_device
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder
from varsmooth.train.lane import Lane
from varsmooth.train.loop import Interrupted

AT_ONCE_ON_GPU, AT_ONCE_ON_CPU = 8, 1
TURN = 4
"""Steps that a run takes before it is the next one's turn."""
NAP = 1e-4
"""Seconds to wait where every run has as much queued on the GPU as it may have."""


@dataclass(frozen=True)
class FleetOutcome:
    """The records of the runs in the order of the list, each with the run's name, and the signal that ended it, if one did."""

    records: list[Record]
    signal: int | None


@dataclass(frozen=True)
class _Member:
    trial: Trial
    lane: Lane
    steps: Steps


def start_fleet(trials: Sequence[Trial], out: Path, reporting: Reporting, at_once: int | None = None) -> FleetOutcome:
    """Train every trial into a folder of its own in ``out``; the list is kept there, so that the fleet can be resumed."""
    number = _number_at_once(trials, at_once)
    with FleetFolder.create(out) as folder:
        folder.write_trials(trials)
        return _train(folder, trials, reporting, number)


def resume_fleet(out: Path, reporting: Reporting, at_once: int | None = None) -> FleetOutcome:
    """Go on with every run that has not finished, a failed one too, and start those that have not begun."""
    with FleetFolder.open(out, lock=True) as folder:
        trials = folder.read_trials()
        return _train(folder, trials, reporting, _number_at_once(trials, at_once))


def _number_at_once(trials: Sequence[Trial], wanted: int | None) -> int:
    """How many runs train at the same time; also refuses a device that is not there."""
    on_gpu = [resolve_device(trial.config.train.device).type == "cuda" for trial in trials]
    if wanted is not None and wanted < 1:
        raise InputError(f"--at-once must be at least 1, got {wanted}")
    return wanted or (AT_ONCE_ON_GPU if any(on_gpu) else AT_ONCE_ON_CPU)


def _train(folder: FleetFolder, trials: Sequence[Trial], reporting: Reporting, at_once: int) -> FleetOutcome:
    with Screen(reporting.console, sum(trial.config.train.steps for trial in trials)) as screen:
        session = Session(screen, reporting.tensorboard)
        with session.interruptions:
            fleet = _Fleet(folder.path, trials, session, at_once)
            try:
                fleet.train()
            finally:
                fleet.abandon()
        return FleetOutcome([fleet.record(trial) for trial in trials], session.interruptions.received)


class _Fleet:
    """The runs that wait, those under way, and the records of those that are through."""

    def __init__(self, path: Path, trials: Sequence[Trial], session: Session, at_once: int) -> None:
        self.path, self.session, self.at_once = path, session, at_once
        self.records = {trial.name: record for trial in trials if (record := self._read(trial)).get("status") == "finished"}
        self.waiting = deque(trial for trial in trials if trial.name not in self.records)
        self.running: list[_Member] = []
        session.screen.advance_total(sum(t.config.train.steps for t in trials if t.name in self.records))

    @property
    def stopping(self) -> bool:
        return self.session.interruptions.received is not None

    def train(self) -> None:
        """Take turns until all have ended, or a signal has made them save and end."""
        while self.running or (self.waiting and not self.stopping):
            while self.waiting and len(self.running) < self.at_once and not self.stopping:
                self._begin(self.waiting.popleft())
            moved = [self._advance(member) for member in list(self.running)]
            if not any(moved):
                time.sleep(NAP)

    def abandon(self) -> None:
        """Leave the runs that an error of this program left under way; their last states stay."""
        for member in self.running:
            member.steps.close()

    def record(self, trial: Trial) -> Record:
        """Return what is known of a run, whether or not it came to its turn."""
        opening = {"name": trial.name, "recipe": trial.config.name, "seed": trial.config.train.seed, "status": "not started"}
        return {**opening, **(self.records.get(trial.name) or self._read(trial))}

    def _read(self, trial: Trial) -> Record:
        """Return the record in a run's folder, an empty one where there is none to read."""
        try:
            return RunFolder(self.path / trial.name).read_record()
        except InputError:
            return {}

    def _begin(self, trial: Trial) -> None:
        """Build a run; it comes to nothing where a signal arrives meanwhile."""
        path = self.path / trial.name
        begun = RunFolder(path).config_path.is_file()
        steps = continued_run(path, self.session) if begun else new_run(trial.config, path, self.session)
        member = _Member(trial, lane_for(trial.config), steps)
        try:
            with self.session.interruptions.at_once(), member.lane.entered():
                next(steps)
            self.running.append(member)
            return
        except Interrupted:
            self.waiting.appendleft(trial)
        except Exception as error:
            self._end(trial, record_unbuilt(trial.config, path, error))
            self.session.screen.advance_total(trial.config.train.steps)
        member.lane.close()

    def _advance(self, member: _Member) -> bool:
        """Give a run its turn; False where its queue on the GPU is still full."""
        moved = False
        try:
            with member.lane.entered():
                for _ in range(TURN):
                    if not (member.lane.ready() or self.stopping):
                        return moved
                    if (record := advance(member.steps)) is not None:
                        break
                    member.lane.stepped()
                    moved = True
                else:
                    return moved
        except Exception as error:
            record = self._failed(member.trial, error)
        self.running.remove(member)
        self._end(member.trial, record)
        member.lane.close()  # after the error is gone, which held on to all that the run had
        return True

    def _failed(self, trial: Trial, error: Exception) -> Record:
        """Return the record that a failed run has written, or what it would have said."""
        record = self._read(trial)
        return record if record.get("status") == "failed" else {**record, "status": "failed", **failure(error)}

    def _end(self, trial: Trial, record: Record) -> None:
        self.records[trial.name] = record
        about = f": {record['reason']}" if record["status"] == "failed" else f" after {record['steps']} steps"
        self.session.screen.say(f"{trial.name}: {record['status']}{about}")
