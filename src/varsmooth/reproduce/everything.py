"""Every run that is planned for a corpus, tables and experiments, as one list for one fleet."""

from __future__ import annotations

import itertools
from pathlib import Path

from varsmooth.reproduce.catalogue import SETTINGS, SIZES, Budget, CorpusPlan
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.experiments import Experiment, experiment_jobs, is_known, named_experiments
from varsmooth.reproduce.jobs import Job, table_jobs
from varsmooth.reproduce.trials import final_jobs


def all_jobs(plan: CorpusPlan, chosen: Chosen, budget: Budget = "full") -> list[Job]:
    """Return the runs of every table, then those of every experiment, as far as what they build on has been chosen.

    Runs that must have the machine to themselves are left out.
    """
    jobs: list[Job] = []
    for size, setting in itertools.product(SIZES, SETTINGS):
        if setting == "paper" or chosen.has_tuned(size):
            jobs += table_jobs(plan, chosen, size=size, setting=setting, budget=budget)
    for experiment in _experiments(plan, chosen, budget):
        jobs += experiment_jobs(experiment, plan.name, chosen, budget=budget)
    return jobs


def all_final_jobs(plan: CorpusPlan, chosen: Chosen, results: Path, budget: Budget = "full") -> list[Job]:
    """Return the final runs of all experiments whose trials have ended."""
    known = _experiments(plan, chosen, budget)
    return [job for experiment in known for job in final_jobs(experiment, plan.name, chosen, results, budget=budget)]


def _experiments(plan: CorpusPlan, chosen: Chosen, budget: Budget) -> list[Experiment]:
    ours = [it for it in named_experiments().values() if plan.name in it.corpora and not it.alone]
    return [it for it in ours if is_known(it, chosen, budget)]
