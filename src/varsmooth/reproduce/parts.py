"""Several tables and experiments of a corpus as one list of runs for one fleet, and what their trials choose on the way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from varsmooth.errors import InputError, check_choice
from varsmooth.reproduce.catalogue import SETTINGS, SIZES, Budget, CorpusPlan, Setting
from varsmooth.reproduce.choosing import choose
from varsmooth.reproduce.chosen import FILE, Choice, Chosen, Key, TuningTrial, read_chosen
from varsmooth.reproduce.experiments import Experiment, Part, experiment_jobs, goes_with, group_of, named_experiments
from varsmooth.reproduce.jobs import Job, table_group, table_jobs
from varsmooth.reproduce.running import missing_jobs
from varsmooth.reproduce.trials import awaited_jobs, final_jobs

TABLES: dict[str, tuple[int, Setting]] = {
    table_group(size, setting, "full"): (size, setting) for size, setting in itertools.product(SIZES, SETTINGS)
}
"""Size and setting of the tables by the names of their records."""
TO_COME = Choice({}, (TuningTrial({}, 0, None),))
"""Stands for what trials will choose."""


@dataclass(frozen=True)
class Parts:
    """Tables and experiments of a corpus by name, in the order in which they are to be run."""

    plan: CorpusPlan
    names: Sequence[str]
    results: Path
    part: Part = field(default_factory=Part)
    """which runs of them; the arms of a table are its rows"""

    @property
    def budget(self) -> Budget:
        return self.part.get("budget", "full")

    def groups(self) -> list[str]:
        """Return the folders that have their records, which are also the parts of the page."""
        groups = [table_group(*TABLES[name], self.budget) for name in self.names if name in TABLES]
        return groups + [group_of(experiment, self.budget) for experiment in self._experiments()]

    def jobs(self) -> list[Job]:
        """Return all runs that are known by now; what builds on a choice that trials among them will make has none yet."""
        return [job for job, waits in self._jobs(read_chosen(self._chosen)) if not waits]

    def waiting(self) -> list[Job]:
        """Return the runs that wait for what trials will choose, as they would be with what is chosen now, or any other."""
        chosen = read_chosen(self._chosen)
        found = [job for job, waits in self._jobs(chosen.over(dict.fromkeys(self._to_choose(), TO_COME))) if waits]
        finals = [awaited_jobs(it, self.plan.name, chosen, self.results, **self.part) for it in self._experiments()]
        return [*found, *itertools.chain.from_iterable(finals)]

    def check(self) -> None:
        """Refuse a part that builds on a choice that neither was made nor will be made by the trials of another part."""
        if self.part.get("seeds") and (tuning := [it.name for it in self._experiments() if it.tunes]):
            raise InputError(f"--seeds does not go with --experiment {tuning[0]}, whose trials choose by a seed of their own")
        foreseen = read_chosen(self._chosen).over(dict.fromkeys(_rows_of(self._rounds()), TO_COME))
        of_experiments = {it.name: (it.size, it.setting) for it in self._experiments()}
        for name in self.names:
            size, setting = {**TABLES, **of_experiments}[name]
            if setting == "tuned" and not (name in TABLES and self.part.get("arms")):
                foreseen.tuned_rows(size)

    def choose(self) -> dict[Key, Choice]:
        """Choose for the rows of each round whose trials have all ended, as far as that changes what was chosen before."""
        found: dict[Key, Choice] = {}
        for tunes, _, trials in self._rounds():
            if not missing_jobs(trials, self.results):
                before = read_chosen(self._chosen).choices
                folders = [job.record_folder(self.results) for job in trials]
                after = choose(folders, self.plan, tunes, self._chosen, f"{self.results}: {trials[0].group}")
                found |= {key: choice for key, choice in after.items() if before.get(key) != choice}
        return found

    @property
    def _chosen(self) -> Path:
        return self.results / self.plan.name / FILE

    def _experiments(self) -> list[Experiment]:
        return [named_experiments()[name] for name in self.names if name not in TABLES]

    def _rounds(self) -> list[tuple[Setting, int, list[Job]]]:
        """Return setting, size and all trials of each round, also where only some of them are to be run now."""
        rounds = self._experiments() if self.budget == "full" else []
        nothing = Chosen("", {})  # on which they build
        return [(it.tunes, it.size, experiment_jobs(it, self.plan.name, nothing)) for it in rounds if it.tunes]

    def _to_choose(self) -> set[Key]:
        """Return the rows of every round that has not ended: it chooses for all of them at once."""
        return _rows_of([round_ for round_ in self._rounds() if missing_jobs(round_[2], self.results)])

    def _jobs(self, chosen: Chosen) -> list[tuple[Job, bool]]:
        """Return every run with what is chosen, and whether it waits."""
        to_choose, jobs = self._to_choose(), list[tuple[Job, bool]]()
        for name in self.names:
            if name in TABLES:
                size, setting = TABLES[name]
                found, builds = self._table(size, setting, chosen), True
            else:
                experiment = named_experiments()[name]
                size, setting = experiment.size, experiment.setting
                found, builds = self._experiment(experiment, chosen), experiment.tunes is None
            jobs += [(job, builds and not to_choose.isdisjoint(chosen.builds_on(setting, size, _row(job)))) for job in found]
        return jobs

    def _table(self, size: int, setting: Setting, chosen: Chosen) -> list[Job]:
        rows, seeds = self.part.get("arms", ()), self.part.get("seeds", ())
        if setting == "tuned" and not (rows or chosen.has_tuned(size)):
            return []
        return table_jobs(self.plan, chosen, size=size, setting=setting, budget=self.budget, rows=rows, seeds=seeds)

    def _experiment(self, experiment: Experiment, chosen: Chosen) -> list[Job]:
        if experiment.setting == "tuned" and not chosen.has_tuned(experiment.size):
            return []
        trials = experiment_jobs(experiment, self.plan.name, chosen, **self.part)
        return [*final_jobs(experiment, self.plan.name, chosen, self.results, **self.part), *trials]


def _rows_of(rounds: Sequence[tuple[Setting, int, list[Job]]]) -> set[Key]:
    """Return the rows for which rounds of trials choose."""
    return {(tunes, size, _row(job)) for tunes, size, trials in rounds for job in trials}


def _row(job: Job) -> str:
    return job.config.name.partition("/")[0]


def all_parts(plan: CorpusPlan, budget: Budget = "full") -> list[str]:
    """Return the names of every table, then of every experiment; those whose runs must have the machine to themselves apart."""
    ours = [name for name, it in named_experiments().items() if plan.name in it.corpora and goes_with(it, budget)]
    return [*TABLES, *(name for name in ours if not named_experiments()[name].alone)]


def check_parts(names: Sequence[str], plan: CorpusPlan, others: Sequence[str] = ()) -> None:
    """Refuse names that are no table or experiment of a corpus, and experiments beside others that need the machine alone."""
    alone = [name for name, it in named_experiments().items() if plan.name in it.corpora and it.alone] + list(others)
    for name in names:
        check_choice("--experiment", name, [*all_parts(plan), *alone])
    if len(names) > 1 and (needy := [name for name in names if name in alone]):
        raise InputError(f"--experiment {needy[0]} needs the machine to itself; give it in a call of its own")
