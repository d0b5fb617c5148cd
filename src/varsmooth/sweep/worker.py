"""A worker of a sweep: claims slots, trains them a few at a time, and tells what came of them, until the budgets are spent."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from varsmooth.config import to_toml
from varsmooth.errors import InputError
from varsmooth.experiment import Corpora, Reporting, Session
from varsmooth.files import write_atomically
from varsmooth.fleet import Trial
from varsmooth.fleet.crew import Crew
from varsmooth.sweep.board import Board, beating, identity_of
from varsmooth.sweep.claims import Claims
from varsmooth.sweep.outcomes import curve_of, ended_before, given_up, marked_pruned, outcome_of, refuse_another_sweeps
from varsmooth.sweep.stage import winner
from varsmooth.sweep.storage import StorageDownError, Store
from varsmooth.sweep.study import Study
from varsmooth.sweep.ticket import RUN, SECONDS, Ticket
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder
from varsmooth.train.record import Record, readable_record

POLL = 1.0
"""Seconds between two looks at the database where there was nothing to claim."""


@dataclass(frozen=True)
class SweepEnd:
    """How a worker's part ended: a signal, trials that others were asked for, or neither: then the study is through."""

    signal: int | None = None
    asked: int = 0


def join(study: Study, store: Store, corpora: Corpora) -> Board:
    """Start or join a study after comparing text and code."""
    return Board.join(study, store, identity_of(study.arms[0].config, corpora))


def work(
    study: Study,
    out: Path,
    store: Store,
    reporting: Reporting,
    at_once: int = 1,
    *,
    take_back: bool = False,
    parent: int | None = None,
) -> SweepEnd:
    """Work on a study until it is through or a signal comes; with ``parent``, until that process has gone."""
    slots = study.budget.trials or 0
    total = len(study.arms) * (slots + len(study.seeds)) * study.budget.steps
    with Screen(reporting.console, total) as screen:
        session = Session(screen, reporting.tensorboard)
        board = join(study, store, session.corpora)
        with session.interruptions:
            worker = _Worker(board, Claims(out, store.folder), out, session, at_once, take_back, parent)
            with beating(store, worker.tickets):
                return worker.work()


class _Worker:
    def __init__(
        self, board: Board, claims: Claims, out: Path, session: Session, at_once: int, take_back: bool, parent: int | None
    ) -> None:
        self.board, self.claims, self.out, self.session = board, claims, out, session
        self.at_once, self.take_back, self.parent = at_once, take_back, parent
        self.tickets: dict[str, Ticket] = {}
        self.crew = Crew(session, self._ended, at_once)
        self.sizes: dict[str, int] = {}
        self.next_look = 0.0
        self.shown = 0
        """slots that are through and in the bar of all runs"""

    def work(self) -> SweepEnd:
        """Refill, take turns, watch; every run is saved where a signal or a lost database ends it."""
        try:
            while True:
                self._leave_with_parent()
                self._refill()
                if self.crew.members:
                    self._take_turns()
                elif self.crew.stopping:
                    return SweepEnd(self.session.interruptions.received)
                elif self.board.finished():
                    return SweepEnd()
                elif self.board.only_asked_left():
                    return SweepEnd(asked=len(self.board.asked()))
                else:
                    self._nap()
        except StorageDownError:
            self._save_all()
            raise
        finally:
            self.crew.close()
            for ticket in self.tickets.values():
                if ticket.claim is not None:
                    ticket.claim.release()

    def _refill(self) -> None:
        while not self.crew.stopping and len(self.crew.members) < self.at_once and time.monotonic() >= self.next_look:
            ticket = self.board.claim(self.claims, take_back=self.take_back)
            self._show_others()
            if ticket is None:
                self.next_look = time.monotonic() + POLL
                return
            self._begin(ticket)

    def _show_others(self) -> None:
        """Count in the bar what was through before, and what other workers have done."""
        through = sum(len(stage.outcomes()) for stage in self.board.stages())
        if through > self.shown:
            self.session.screen.advance_total((through - self.shown) * self.board.study.budget.steps)
            self.shown = through

    def _begin(self, ticket: Ticket) -> None:
        """Train what a slot asks for, unless its run came to an end before a worker died."""
        path = self._path(ticket)
        record = readable_record(path)
        self.tickets[ticket.name] = ticket
        refuse_another_sweeps(path, ticket)
        if ended_before(record):
            # A database that was made anew knows nothing of its cost, and minutes spent must stay spent; the record has the
            # time on the clock, in which the others of this process had their turns, too.
            ticket.seconds = max(ticket.seconds, float(record.get("seconds") or 0.0) / self.at_once)
            self._ended(Trial(ticket.name, ticket.config), record)
            self.session.screen.advance_total(ticket.config.train.steps)
            return
        began = time.perf_counter()
        if not self.crew.begin(Trial(ticket.name, ticket.config), path):
            self._drop(ticket)
        ticket.seconds += time.perf_counter() - began  # building and capturing take the GPU's time too

    def _take_turns(self) -> None:
        began, running = time.perf_counter(), [member.trial.name for member in self.crew.members]
        self.crew.take_turns()
        share = (time.perf_counter() - began) / len(running)
        for name in running:
            if (ticket := self.tickets.get(name)) is not None:
                ticket.seconds += share
                self._watch(ticket)

    def _watch(self, ticket: Ticket) -> None:
        """Report evaluations that have been added; stop a run that the pruner gives up."""
        folder = RunFolder(self._path(ticket))
        try:
            size = folder.metrics_path.stat().st_size
        except OSError:
            return
        if size != self.sizes.get(ticket.name):
            self.sizes[ticket.name] = size
            if ticket.stage.report(ticket, curve_of(folder)):
                # One that was given to another is not given up: whoever claims its slot here goes on with it.
                self.crew.stop(ticket.name, int(signal.SIGTERM) if ticket.lost else "given up")

    def _ended(self, trial: Trial, record: Record) -> None:
        """Tell what came of a run; one that a signal stopped, or a full disk, waits for the next worker."""
        ticket = self.tickets[trial.name]
        ticket.seconds = max(ticket.seconds, 1e-6)
        path = self._path(ticket)
        if record.get("stopped_because") == "disk full":
            raise InputError(str(record["reason"]))
        if given_up(record):
            record = marked_pruned(path, record)
        if not ticket.lost and (outcome := outcome_of(record)) is not None:
            ticket.stage.report(ticket, curve_of(RunFolder(path)))
            state, value, notes = outcome
            notes |= {SECONDS: ticket.seconds, RUN: str(path.relative_to(self.out))}
            self.shown += ticket.stage.tell(ticket, state, value, notes)
            self.next_look = 0.0
        self._drop(ticket)

    def _drop(self, ticket: Ticket) -> None:
        self.tickets.pop(ticket.name, None)
        self.sizes.pop(ticket.name, None)
        if ticket.claim is not None:
            ticket.claim.release()

    def _path(self, ticket: Ticket) -> Path:
        return ticket.stage.run_folder(ticket.slot, self.out).path

    def _leave_with_parent(self) -> None:
        """End as after a signal where the process that started this one was killed."""
        if self.parent is not None and os.getppid() != self.parent and self.session.interruptions.received is None:
            self.session.interruptions.received = int(signal.SIGTERM)

    def _nap(self) -> None:
        """Wait a little for others to end, and no longer than a signal lets it."""
        until = max(self.next_look, time.monotonic() + 0.05)
        while time.monotonic() < until and not self.crew.stopping:
            time.sleep(0.05)

    def _save_all(self) -> None:
        """Have every run save its state: the database is away, and what was trained must not be lost."""
        self.board.store.waits = ()
        for member in self.crew.members:
            member.control.stop = int(signal.SIGTERM)
        while self.crew.members:
            with suppress(StorageDownError):  # of one that ends just now; the next worker finds its record
                self.crew.take_turns()


def write_winners(board: Board, out: Path) -> dict[str, Path]:
    """Write the best configuration of every arm as a recipe that can be trained."""
    written = {}
    for stage in board.arms:
        if (best := winner(stage)) is not None:
            path = out / f"best-{stage.arm.name}.toml"
            write_atomically(path, to_toml(best.config).encode())
            written[stage.arm.name] = path
    return written
