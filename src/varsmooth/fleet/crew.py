"""Runs of one process that take turns, a few steps at a time, and begin, end and fail each on its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from varsmooth.experiment import (
    RunControl,
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
from varsmooth.train.interruptions import Interrupted
from varsmooth.train.lane import Lane
from varsmooth.train.loop import Reason
from varsmooth.train.record import Record, readable_record

TURN = 4
"""Steps that a run takes before it is the next one's turn."""
NAP = 1e-4
"""Seconds to wait where every run has as much queued on the GPU as it may have."""


@dataclass(frozen=True)
class Member:
    """A run under way."""

    trial: Trial
    path: Path
    lane: Lane
    steps: Steps
    control: RunControl

    @property
    def step(self) -> int:
        return self.control.progress.step if self.control.progress else 0

    @property
    def steps_left(self) -> int:
        return self.trial.config.train.steps - self.step


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
        session, control = self.session, RunControl(trial.name)
        begun = RunFolder(path).config_path.is_file()
        steps = continued_run(path, session, control) if begun else new_run(trial.config, path, session, control)
        member = Member(trial, path, lane_for(trial.config, shares=self.at_once > 1), steps, control)
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

    def stop(self, name: str, reason: Reason) -> None:
        """Have one run save its state and end."""
        for member in self.members:
            if member.trial.name == name:
                member.control.stop = reason

    def stop_training(self) -> None:
        """Have every run save its state and end, but for those that only have to be evaluated."""
        if self.stopping:
            return
        for member in self.members:
            if member.steps_left and member.control.stop is None:
                member.control.stop = "time"

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
        status = "given up" if record.get("stopped_because") == "given up" else record["status"]
        self.session.screen.say(f"{trial.name}: {status}{about}")
        self.ended(trial, record)
