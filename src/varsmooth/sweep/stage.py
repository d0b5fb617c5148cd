"""One Optuna study of a sweep: an arm's search, or the seeds of an arm's best. Its budget is a number of slots.

Each slot is a trial that waits to be claimed, so an arm can neither exceed its budget nor fall short of it. A worker that dies
leaves a trial without an outcome; its slot is then queued again, with the same parameters. Where two workers queue the same
slot at once, the trial with the lower number counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varsmooth.config import Config, load_config, with_values
from varsmooth.errors import InputError
from varsmooth.sweep.claims import Claim, Claims
from varsmooth.sweep.sampling import first_points, pruner_of, rounded, seeded_sampler, suggest
from varsmooth.sweep.space import Choice, Space, grid, recipe_point
from varsmooth.sweep.storage import Store
from varsmooth.sweep.study import Arm, Budget, Pruner, Sampler, Study
from varsmooth.sweep.ticket import ASKED, PLACE, REASON, SECONDS, SLOT, STEPS, SUPERSEDED, Ticket
from varsmooth.train.folder import RunFolder

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class Stage:
    """The slots of one arm, or those of the seeds that its best is run with."""

    def __init__(self, store: Store, study: Study, arm: Arm, *, seeds: bool = False) -> None:
        self.store, self.arm, self.seeds = store, arm, seeds
        self.title = f"{study.name}/{arm.name}" + ("/seeds" if seeds else "")
        self.space: Space = {"train.seed": Choice(study.seeds)} if seeds else arm.space
        self.budget = Budget(study.budget.steps, len(study.seeds)) if seeds else study.budget
        self.sampler = Sampler("grid") if seeds else study.sampler
        self._lock = self.title.replace("/", "~")
        self.optuna_study = store.study(self.title)
        self.optuna_study.pruner = pruner_of(store.optuna, Pruner() if seeds else study.pruner)

    def label(self, slot: int) -> str:
        """The name of a slot's folder."""
        return f"seed-{self._points()[slot]['train.seed']}" if self.seeds else f"trial-{slot:04d}"

    def run_name(self, slot: int) -> str:
        """The name of a slot's run, its arm included."""
        return f"{self.arm.name}-{self.label(slot)}"

    def notes(self) -> dict[str, Any]:
        """What varsmooth has written beside the Optuna study."""
        return self.store.attempt(lambda: self.optuna_study.user_attrs)

    def trials(self) -> list[FrozenTrial]:
        """All trials that have a slot and stand for it, those of dead workers included."""
        found = self.store.attempt(self.optuna_study.get_trials, deepcopy=False)
        return [trial for trial in found if SLOT in trial.user_attrs and not trial.user_attrs.get(SUPERSEDED)]

    def asked(self) -> list[FrozenTrial]:
        """The trials that were asked for and not told of yet."""
        return [trial for trial in self.trials() if trial.state.name == "RUNNING" and trial.user_attrs.get(ASKED)]

    def outcomes(self) -> dict[int, FrozenTrial]:
        """The trial that decided each slot which is through."""
        found: dict[int, FrozenTrial] = {}
        for trial in self.trials():
            if self.is_outcome(trial):
                found.setdefault(trial.user_attrs[SLOT], trial)
        return found

    def is_outcome(self, trial: FrozenTrial) -> bool:
        """Whether a trial ended with a result, a failure of its own included; a dead worker's did not."""
        return trial.state.is_finished() and (trial.state.name != "FAIL" or REASON in trial.user_attrs)

    def seconds(self) -> float:
        """What all trials have cost, those of dead workers included."""
        return sum(float(trial.user_attrs.get(SECONDS, 0.0)) for trial in self.trials())

    def steps(self) -> int:
        """How many steps all trials have taken that are through."""
        return sum(int(trial.user_attrs.get(STEPS, 0)) for trial in self.trials())

    def finished(self) -> bool:
        """Whether the budget is spent."""
        return len(self.outcomes()) >= len(self.wanted())

    def wanted(self) -> range:
        """The slots that the budget pays for."""
        most = self.budget.trials
        if self.budget.minutes is None and self.budget.total_steps is None:
            return range(most or 0)
        known = {trial.user_attrs[SLOT] for trial in self.trials()}
        begun = max(known, default=-1) + 1
        waiting = any(trial.state.name == "WAITING" for trial in self.trials())
        wanted = begun if waiting or self._spent(begun) else begun + 1
        return range(wanted if most is None else min(wanted, most))

    def _spent(self, begun: int) -> bool:
        """Whether the minutes are used up, or too few steps left for another trial beside the slots that have begun."""
        minutes, most = self.budget.minutes, self.budget.total_steps
        if minutes is not None and self.seconds() >= 60 * minutes:
            return True
        if most is None:
            return False
        # A slot that is not through may spend all the steps of a trial; what it leaves is handed out once it has ended.
        promised = self.steps() + (begun - len(self.outcomes())) * self.budget.steps
        return promised + self.budget.steps > most

    def best(self) -> FrozenTrial | None:
        """The trial with the lowest development perplexity among those that were trained to the end."""
        complete = [trial for trial in self.outcomes().values() if trial.state.name == "COMPLETE"]
        return min(complete, key=lambda trial: (float(trial.value or 0.0), trial.user_attrs[SLOT]), default=None)

    def fill(self, out: Path | None = None) -> None:
        """Queue every slot of the budget that has no trial, and those whose worker died.

        What the sampler decides is taken from a slot's run where there is one in ``out``: where the database was lost, it would
        not choose the same again, as it knew of other trials then.
        """
        self.store.fail_silent(self.optuna_study)
        by_slot: dict[int, list[FrozenTrial]] = {}
        for trial in self.trials():
            by_slot.setdefault(trial.user_attrs[SLOT], []).append(trial)
        points = self._points() if self.sampler.kind == "grid" else []
        points = points or first_points(self.sampler, self.arm.config, self.space, f"{self.sampler.seed} {self.title}")
        for slot in self.wanted():
            known = by_slot.get(slot, [])
            if any(not trial.state.is_finished() or self.is_outcome(trial) for trial in known):
                continue
            params = next((dict(trial.params) for trial in reversed(known) if trial.params), None)
            if params is None:
                params = points[slot] if slot < len(points) else self._kept(slot, out)
            self.store.attempt(self.optuna_study.enqueue_trial, params, user_attrs={SLOT: slot})

    def claim(self, claims: Claims, *, asked: bool = False, take_back: bool = False) -> Ticket | None:
        """Claim a slot: one that a dead process of this place left first, then one that waits; None where there is none."""
        if filling := claims.take(f"{self._lock}-slots"):
            # One process of a place at a time: SQLite would number two trials alike that are queued at once.
            try:
                self.fill(claims.out)
            finally:
                filling.release()
        trials = sorted(self.trials(), key=lambda trial: (trial.user_attrs[SLOT], trial.number))
        if not asked:
            for trial in trials:
                left_here = trial.state.name == "RUNNING" and self._left_here(trial, claims, take_back)
                if left_here and (ticket := self._locked(trial, claims, self._adopt)):
                    return ticket
        for trial in trials:
            waits = trial.state.name == "WAITING"
            if waits and (ticket := self._locked(trial, claims, self._ask if asked else self._pop)):
                return ticket
        return None

    def config(self, params: Mapping[str, Any]) -> Config:
        """The configuration of a trial with these parameters."""
        return with_values(self.arm.config, params, self.title)

    def report(self, ticket: Ticket, curve: Sequence[tuple[int, float]]) -> bool:
        """Tell the database of evaluations as they come; return whether the trial should be given up."""
        new = [(step, value) for step, value in curve if step not in ticket.reported]
        if not new or ticket.lost:
            return False
        try:
            for step, value in new:
                self.store.attempt(ticket.trial.report, value, step)
                ticket.reported.add(step)
            self._note(ticket, {SECONDS: ticket.seconds})
            return bool(self.store.attempt(ticket.trial.should_prune)) and new[-1][0] < ticket.config.train.steps
        except self.store.optuna.exceptions.UpdateFinishedTrialError:
            ticket.lost = True
            return True

    def tell(self, ticket: Ticket, state: str, value: float | None, notes: Mapping[str, Any]) -> bool:
        """Record a slot's outcome; False where it was given to another worker meanwhile, or told before."""
        kind = self.store.optuna.trial.TrialState[state]
        try:
            self._note(ticket, notes)
            self.store.attempt(self._tell_once, ticket, kind, value)
        except self.store.optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    def _tell_once(self, ticket: Ticket, kind: Any, value: float | None) -> None:
        """An attempt whose answer was lost may have been heard: then there is nothing more to tell."""
        now = self.store.storage.get_trial(ticket.identity)
        if now.state == kind:
            return
        if now.state.is_finished():
            raise self.store.optuna.exceptions.UpdateFinishedTrialError
        self.optuna_study.tell(ticket.trial, value if kind.name == "COMPLETE" else None, state=kind)

    def _note(self, ticket: Ticket, notes: Mapping[str, Any]) -> None:
        for key, value in notes.items():
            self.store.attempt(ticket.trial.set_user_attr, key, value)

    def run_folder(self, slot: int, out: Path) -> RunFolder:
        """The folder of a slot's run in that of the sweep."""
        return RunFolder(out / self.arm.name / self.label(slot))

    def _kept(self, slot: int, out: Path | None) -> dict[str, Any]:
        """The parameters of a slot's run, if it has one with a value for each; whether it is of this sweep is asked later."""
        try:
            found = {} if out is None else recipe_point(load_config(self.run_folder(slot, out).config_path), self.space)
        except InputError:
            return {}
        return found if found.keys() == self.space.keys() else {}

    def _points(self) -> list[dict[str, Any]]:
        return list(grid(self.space))

    def _left_here(self, trial: FrozenTrial, claims: Claims, take_back: bool) -> bool:
        """Whether this place is where a trial's worker was; a trial that was asked for is somewhere else."""
        if trial.user_attrs.get(ASKED):
            return take_back
        if not self.store.shared:
            return True  # all workers of a file share its locks, whatever its folder or the machine is called by now
        # Without a place its worker has only just taken it, or will be missed soon.
        return bool(trial.user_attrs.get(PLACE) == claims.place)

    def _locked(self, trial: FrozenTrial, claims: Claims, take: Callable[[FrozenTrial, Claim], Ticket | None]) -> Ticket | None:
        """Take a trial under the lock of its slot."""
        slot = trial.user_attrs[SLOT]
        claim = claims.take(f"{self._lock}-{self.label(slot)}")
        if claim is None:
            return None
        try:
            # Read again: another process of this place may have worked on it until its lock was free.
            now = self.store.attempt(self.store.storage.get_trial, trial._trial_id)
            ticket = take(now, claim) if now.state == trial.state else None
            if ticket is not None and ticket.claim is not None:
                self._note(ticket, {PLACE: claims.place})
        except self.store.optuna.exceptions.UpdateFinishedTrialError:
            ticket = None  # another machine has just given it up for dead
        except BaseException:
            claim.release()
            raise
        if ticket is None:
            claim.release()
        return ticket

    def _adopt(self, trial: FrozenTrial, claim: Claim) -> Ticket | None:
        """Go on with a trial whose worker has died here."""
        if self.store.shared:
            # At once: the signs of the one that died are old, and another machine would give the slot away.
            self.store.attempt(self.store.storage.record_heartbeat, trial._trial_id)
        ticket = self._ticket(trial, claim)
        if ticket is not None:
            self._note(ticket, {ASKED: False})
        return ticket

    def _pop(self, trial: FrozenTrial, claim: Claim | None) -> Ticket | None:
        """Take a trial that waits, unless another machine was quicker, or its slot has another trial."""
        storage, states = self.store.storage, self.store.optuna.trial.TrialState
        if self.store.shared and claim is not None:
            # Before it runs: a trial that never gave a sign of life is never missed; right only where it was asked for.
            self.store.attempt(storage.record_heartbeat, trial._trial_id)
        if not self.store.attempt(storage.set_trial_state_values, trial._trial_id, state=states.RUNNING):
            return None
        ticket = self._ticket(trial, claim)
        if ticket is None:
            return None
        same = [other for other in self.trials() if other.user_attrs[SLOT] == ticket.slot and other.number != trial.number]
        if any(self.is_outcome(other) or (not other.state.is_finished() and other.number < trial.number) for other in same):
            self.tell(ticket, "FAIL", None, {SUPERSEDED: True})
            return None
        return ticket

    def _ask(self, trial: FrozenTrial, claim: Claim) -> Ticket | None:
        """Take a trial for a machine that has no database: it is told of later."""
        ticket = self._pop(trial, None)
        if ticket is not None:
            self._note(ticket, {ASKED: True})
            claim.release()
        return ticket

    def _ticket(self, trial: FrozenTrial, claim: Claim | None) -> Ticket | None:
        """Open a trial; None where its parameters exclude each other, which fails it alone."""
        slot = trial.user_attrs[SLOT]
        self.optuna_study.sampler = seeded_sampler(self.store.optuna, self.sampler, f"{self.title} {slot}")
        opened = self.store.attempt(self.store.optuna.trial.Trial, self.optuna_study, trial._trial_id)
        params = {key: self.store.attempt(suggest, opened, key, self.space) for key in self.space}
        seconds, config, reason = float(trial.user_attrs.get(SECONDS, 0.0)), self.arm.config, None
        try:
            config = self.config(params)
        except InputError as error:
            reason = str(error)
        ticket = Ticket(self, slot, opened, config, claim, seconds, set(trial.intermediate_values))
        if reason is not None:
            self.tell(ticket, "FAIL", None, {REASON: reason})
            return None
        return ticket


def winner(stage: Stage) -> Arm | None:
    """The arm with its best parameters, nothing left to tune; None where no trial was trained to the end."""
    best = stage.best()
    return None if best is None else replace(stage.arm, config=stage.config(rounded(best.params, stage.space)), space={})
