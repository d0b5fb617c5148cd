"""Training a fleet: a list of runs, a few of them at a time, refilled as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from varsmooth.errors import InputError
from varsmooth.experiment import Record, Reporting, Session
from varsmooth.fleet.crew import Crew, read_record
from varsmooth.fleet.trials import FleetFolder, Trial
from varsmooth.train.build import resolve_device
from varsmooth.train.display import Screen

AT_ONCE_ON_GPU, AT_ONCE_ON_CPU = 8, 1


@dataclass(frozen=True)
class FleetOutcome:
    """The records of the runs in the order of the list, each with the run's name, and the signal that ended it, if one did."""

    records: list[Record]
    signal: int | None


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
                fleet.crew.abandon()
        return FleetOutcome([fleet.record(trial) for trial in trials], session.interruptions.received)


class _Fleet:
    """The runs that wait, those under way, and the records of those that are through."""

    def __init__(self, path: Path, trials: Sequence[Trial], session: Session, at_once: int) -> None:
        self.path, self.at_once = path, at_once
        self.records = {t.name: record for t in trials if (record := read_record(path / t.name)).get("status") == "finished"}
        self.waiting = deque(trial for trial in trials if trial.name not in self.records)
        self.crew = Crew(session, self._ended)
        session.screen.advance_total(sum(t.config.train.steps for t in trials if t.name in self.records))

    def train(self) -> None:
        """Take turns until all have ended, or a signal has made them save and end."""
        crew = self.crew
        while crew.members or (self.waiting and not crew.stopping):
            while self.waiting and len(crew.members) < self.at_once and not crew.stopping:
                trial = self.waiting.popleft()
                if not crew.begin(trial, self.path / trial.name):
                    self.waiting.appendleft(trial)
            crew.take_turns()

    def record(self, trial: Trial) -> Record:
        """Return what is known of a run, whether or not it came to its turn."""
        opening = {"name": trial.name, "recipe": trial.config.name, "seed": trial.config.train.seed, "status": "not started"}
        return {**opening, **(self.records.get(trial.name) or read_record(self.path / trial.name))}

    def _ended(self, trial: Trial, record: Record) -> None:
        self.records[trial.name] = record
