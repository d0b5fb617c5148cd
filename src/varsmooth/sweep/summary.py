"""What came of a study: for each arm its budget, its best, the seeds of that, and which parameters mattered."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varsmooth.config import to_toml
from varsmooth.experiment.seeds import Spread, spread
from varsmooth.sweep.board import Board
from varsmooth.sweep.importance import importance
from varsmooth.sweep.sampling import rounded
from varsmooth.sweep.stage import Stage, winner
from varsmooth.sweep.ticket import REASON, RUN, SECONDS, SLOT, STEPS
from varsmooth.train.record import readable_record, result_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LEAST_TRIALS = 8
"""Finished trials below which an importance says nothing."""
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class TrialSummary:
    """One trial that is through."""

    trial: str
    state: str
    valid_perplexity: float | None
    params: dict[str, Any]
    steps: int
    minutes: float
    minutes_so_far: float
    """of the arm, this trial included"""
    reason: str | None
    run: str | None


@dataclass(frozen=True)
class SeedSummary:
    """The best configuration with another seed."""

    seed: int
    state: str
    valid_perplexity: float | None
    test_perplexity: float | None


@dataclass(frozen=True)
class ArmSummary:
    """What one arm was given, used and found."""

    arm: str
    finished: bool
    budget: dict[str, Any]
    used: dict[str, Any]
    best: TrialSummary | None
    best_config: str | None
    """as TOML"""
    seeds: list[SeedSummary]
    seeds_valid: Spread | None
    seeds_test: Spread | None
    """of those seeds that have the figure"""
    importance: dict[str, float] | None
    importance_missing: str | None
    trials: list[TrialSummary]


@dataclass(frozen=True)
class StudySummary:
    """A study and its arms."""

    study: str
    finished: bool
    sampler: str
    pruner: str
    arms: list[ArmSummary]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def budget_text(self) -> str:
        """Say what every arm was given."""
        given = self.arms[0].budget
        steps = f"{given['steps_per_trial']:,} steps"
        parts = [f"{given['trials']:,} trials of {steps}" if given["trials"] else f"trials of {steps}"]
        parts += [f"{given['total_steps']:,} steps in all"] if given["total_steps"] else []
        parts += [f"{given['minutes']:g} minutes"] if given["minutes"] else []
        return " within ".join([parts[0], " and ".join(parts[1:])]) if len(parts) > 1 else parts[0]


def summarize(board: Board, out: Path | None = None) -> StudySummary:
    """Read everything from the database; test figures come from the runs in ``out``, where they are at hand."""
    study = board.study
    seeds = {stage.arm.name: stage for stage in board.seed_stages()}
    arms = [_arm(stage, seeds.get(stage.arm.name), out) for stage in board.arms]
    return StudySummary(study.name, board.finished(), study.sampler.kind, study.pruner.kind, arms)


def _arm(stage: Stage, seeds: Stage | None, out: Path | None) -> ArmSummary:
    outcomes = stage.outcomes()
    trials = _trials(stage, list(outcomes.values()))
    best, found = stage.best(), winner(stage)
    reruns = _seeds(seeds, out) if seeds else []
    mattered, missing = _importance(stage, [trial for trial in outcomes.values() if trial.state.name == "COMPLETE"])
    counts = {name: sum(trial.state == name for trial in trials) for name in STATES.values()}
    return ArmSummary(
        stage.arm.name,
        stage.finished(),
        {
            "trials": stage.budget.trials,
            "steps_per_trial": stage.budget.steps,
            "total_steps": stage.budget.total_steps,
            "minutes": stage.budget.minutes,
        },
        {
            "trials": len(trials),
            **counts,
            "open": sum(not trial.state.is_finished() for trial in stage.trials()),
            "steps": sum(trial.steps for trial in trials),
            "minutes": stage.seconds() / 60,
        },
        next((trial for trial in trials if best is not None and trial.trial == stage.label(best.user_attrs[SLOT])), None),
        None if found is None else to_toml(found.config),
        reruns,
        spread((entry.seed, entry.valid_perplexity) for entry in reruns if entry.valid_perplexity is not None),
        spread((entry.seed, entry.test_perplexity) for entry in reruns if entry.test_perplexity is not None),
        mattered,
        missing,
        trials,
    )


def _trials(stage: Stage, outcomes: list[FrozenTrial]) -> list[TrialSummary]:
    """The trials in the order in which they ended."""
    found, so_far = [], 0.0
    for trial in sorted(outcomes, key=lambda trial: (trial.datetime_complete, trial.number)):
        notes = trial.user_attrs
        minutes = float(notes.get(SECONDS, 0.0)) / 60
        so_far += minutes
        found.append(
            TrialSummary(
                stage.label(notes[SLOT]),
                STATES[trial.state.name],
                trial.value,
                rounded(trial.params, stage.space),
                int(notes.get(STEPS, 0)),
                minutes,
                so_far,
                notes.get(REASON),
                notes.get(RUN),
            )
        )
    return found


def _seeds(stage: Stage, out: Path | None) -> list[SeedSummary]:
    found = []
    for trial in sorted(stage.outcomes().values(), key=lambda trial: int(trial.user_attrs[SLOT])):
        test = _test_perplexity(out, trial.user_attrs.get(RUN))
        found.append(SeedSummary(int(trial.params["train.seed"]), STATES[trial.state.name], trial.value, test))
    return found


def _test_perplexity(out: Path | None, run: str | None) -> float | None:
    """The test perplexity by the recipe's own prediction, where the run is at hand."""
    if run is None or (out is None and not Path(run).is_absolute()):
        return None
    found = result_of(readable_record((out or Path()) / run), "test")
    return None if found is None or found["perplexity"] is None else float(found["perplexity"])


def _importance(stage: Stage, complete: list[FrozenTrial]) -> tuple[dict[str, float] | None, str | None]:
    """The importance of each parameter, or the reason why there is none."""
    if len(stage.space) < 2:
        return None, "there are fewer than two parameters to compare"
    if len(complete) < LEAST_TRIALS:
        return None, f"it needs {LEAST_TRIALS} trials that were trained to the end, and there are {len(complete)}"
    if len({trial.value for trial in complete}) < 2:
        return None, "all trials came to the same perplexity"
    trials = [(rounded(trial.params, stage.space), trial.value) for trial in complete if trial.value is not None]
    return importance(stage.space, trials), None
