"""The last round of tuning: the best short trials of each row once more, as long as a final run.

What trains briefly wants less dropout and less smoothing than what trains long, so short trials alone would choose too little.
The seed is one that no final run has: the figures of the table are not those that were chosen for being low.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from varsmooth.config import with_values
from varsmooth.errors import InputError
from varsmooth.recipe import load_recipe
from varsmooth.reproduce.catalogue import Budget, CorpusPlan, Setting, Values, budget_values
from varsmooth.reproduce.choosing import choose
from varsmooth.reproduce.chosen import Choice, Chosen, Key, TuningTrial
from varsmooth.reproduce.jobs import Job, chosen_rows, table_group
from varsmooth.reproduce.running import missing_jobs

SEED = 11


def finalist_jobs(
    plan: CorpusPlan,
    chosen: Chosen,
    count: int,
    *,
    size: int,
    setting: Setting,
    budget: Budget = "full",
    rows: Sequence[str] = (),
) -> list[Job]:
    """Return a run for each of the ``count`` best trials of every row that has trials, or of the ``rows`` that are named."""
    if count < 1:
        raise InputError(f"--finalists must be at least 1, got {count}")
    tried = [key[2] for key, choice in chosen.choices.items() if key[:2] == (setting, size) and choice.trials]
    for name in rows or ["ROW"] * (not tried):
        if name not in tried:
            raise InputError(f"{chosen.source}: [{setting}.{size}.{name}] has no trials; tune the row, then give --choose-from")
    group = f"finalists-{table_group(size, setting, budget)}"
    common: Values = {**budget_values(budget), "evaluate.final": False, "train.seed": SEED}
    jobs = []
    for row in chosen_rows(plan, rows or tried):
        recipe = load_recipe(f"{row.name}/{plan.name}-{size}")
        best = _best_short(chosen.choices[setting, size, row.name], recipe.train.steps)
        for trial in best[:count]:
            config = with_values(recipe, {**trial.set, **common}, f"{chosen.source}, {setting}.{size}.{row.name}")
            jobs.append(Job(plan.name, group, f"{row.name}-{_digest(trial.set)}-seed{SEED}", config))
    if not jobs:
        raise InputError(
            f"{chosen.source}: no trial of [{setting}.{size}] is shorter than a final run, so there are no finalists"
        )
    return jobs


def choose_among(jobs: Sequence[Job], results: Path, plan: CorpusPlan, setting: Setting, path: Path) -> dict[Key, Choice]:
    """Once all have ended, choose for each row the best of its finalists, and add them to its trials in ``path``."""
    if missing_jobs(jobs, results):
        return {}
    return choose([job.record_folder(results) for job in jobs], plan, setting, path, f"{results}: {jobs[0].group}")


def _digest(values: Values) -> str:
    """A name for values that stays when other trials are added, which ranks do not."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def _best_short(choice: Choice, full: int) -> list[TuningTrial]:
    """Trials that were shorter than a final run: those that trained longest first, and of these the best."""
    ranked = sorted(
        (-trial.steps, trial.valid_perplexity, number)
        for number, trial in enumerate(choice.trials)
        if trial.steps < full and trial.valid_perplexity is not None
    )
    best: list[TuningTrial] = []
    for *_, number in ranked:
        trial = choice.trials[number]
        if trial.set not in [other.set for other in best]:
            best.append(trial)
    return best
