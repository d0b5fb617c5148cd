"""Runs of one process that take turns, a few steps at a time, and begin, end and fail each on its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from varsmooth.experiment import (
    Gauge,
    Session,
    Steps,
    advance,
    continued_run,
    failure,
    lane_for,
    new_run,
    record_unbuilt,
)
from varsmooth.fleet.trials import Trial
from varsmooth.train.folder import RunFolder
from varsmooth.train.lane import Lane
from varsmooth.train.loop import OUT_OF_TIME, Interrupted, Interruptions
from varsmooth.train.record import Record, readable_record

TURN = 4
"""Steps that a run takes before it is the next one's turn."""
NAP = 1e-4
"""Seconds to wait where every run has as much queued on the GPU as it may have."""
ON_ITS_OWN = 0
"""What stands for a signal in the record of a run that was stopped alone."""


class Reins(Interruptions):
    """One run's: it ends with a signal to the process, or alone."""

    def __init__(self, process: Interruptions) -> None:
        self._process = process
        super().__init__()

    @property
    def received(self) -> int | None:
        return self._process.received if self._own is None else self._own

    @received.setter
    def received(self, number: int | None) -> None:
        self._own = number

    @contextmanager
    def at_once(self) -> Iterator[None]:
        with self._process.at_once():
            yield


@dataclass(frozen=True)
class Member:
    """A run under way."""

    trial: Trial
    path: Path
    lane: Lane
    steps: Steps
    reins: Reins
    gauge: Gauge

    @property
    def steps_left(self) -> int:
        return self.trial.config.train.steps - self.gauge.step


class Crew:
    """The runs under way, ``at_once`` of them where there are as many; ``ended`` is told of each one's end."""

    def __init__(self, session: Session, ended: Callable[[Trial, Record], None], at_once: int) -> None:
        self.session, self.ended, self.at_once = session, ended, at_once
        self.members: list[Member] = []
        # Every capture of a graph, and every end of a run, collects garbage first: that should look at what runs leave behind,
        # not each time at all the modules that are loaded, while the card waits.
        gc.collect()
        gc.freeze()

    @property
    def stopping(self) -> bool:
        return self.session.interruptions.received is not None

    def begin(self, trial: Trial, path: Path) -> bool:
        """Build a run, or go on with the one in ``path``; False where a signal arrives meanwhile, and it came to nothing."""
        reins = Reins(self.session.interruptions)
        gauge = Gauge()
        session = replace(self.session, interruptions=reins, gauge=gauge, title=trial.name)
        begun = RunFolder(path).config_path.is_file()
        steps = continued_run(path, session) if begun else new_run(trial.config, path, session)
        member = Member(trial, path, lane_for(trial.config, shares=self.at_once > 1), steps, reins, gauge)
        try:
            with self.session.interruptions.at_once(), member.lane.entered():
                next(steps)
            self.members.append(member)
            return True
        except Interrupted:
            member.lane.close()
            return False
        except Exception as error:
            record = record_unbuilt(trial.config, path, error)
        self.session.screen.advance_total(trial.config.train.steps)
        member.lane.close()
        self._end(trial, record)
        return True

    def take_turns(self) -> None:
        """Give every run its turn."""
        moved = [self._advance(member) for member in list(self.members)]
        if not any(moved):
            time.sleep(NAP)

    def stop(self, name: str, number: int = ON_ITS_OWN) -> None:
        """Have one run save its state and end, as after this signal."""
        for member in self.members:
            if member.trial.name == name:
                member.reins.received = number

    def stop_training(self) -> None:
        """Have every run save its state and end, but for those that only have to be evaluated."""
        for member in self.members:
            if member.steps_left and member.reins.received is None:
                member.reins.received = OUT_OF_TIME

    def close(self) -> None:
        """Leave the runs that an error of this program left under way, if any; their last states stay."""
        for member in self.members:
            member.steps.close()
        gc.unfreeze()

    def _advance(self, member: Member) -> bool:
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
            record = self._failed(member, error)
        self.members.remove(member)
        member.lane.close()  # after the error is gone, which held on to all that the run had
        self._end(member.trial, record)
        return True

    def _failed(self, member: Member, error: Exception) -> Record:
        """Return the record that a failed run has written, or what it would have said."""
        record = readable_record(member.path)
        return record if record.get("status") == "failed" else {**record, "status": "failed", **failure(error)}

    def _end(self, trial: Trial, record: Record) -> None:
        about = f": {record['reason']}" if record["status"] == "failed" else f" after {record['steps']} steps"
        status = "given up" if record.get("signal") == ON_ITS_OWN else record["status"]
        self.session.screen.say(f"{trial.name}: {status}{about}")
        self.ended(trial, record)
