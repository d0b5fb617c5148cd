"""Training what is missing: one fleet for each corpus, whose finished runs leave their records in ``results``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from varsmooth.config import load_config, to_mapping, with_values
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting, from_anywhere
from varsmooth.files import write_atomically
from varsmooth.fleet import FleetOutcome, TimeLimit, Trial, is_fleet, resume_fleet, start_fleet
from varsmooth.fleet.driver import Ended
from varsmooth.reproduce.jobs import Job
from varsmooth.reproduce.matching import differing, fits, has_ended, standard_checksums
from varsmooth.reproduce.shares import data_for
from varsmooth.text.named import KNOWN, check, locate
from varsmooth.train.folder import RunFolder
from varsmooth.train.record import Record

SPENT = "spent.jsonl"


def missing_jobs(jobs: Sequence[Job], results: Path) -> list[Job]:
    """Return the jobs without a record of the same configuration and text, finished or diverged."""
    return [job for job in jobs if not _is_recorded(job, results)]


def jobs_to_train(jobs: Sequence[Job], results: Path) -> list[Job]:
    """Return the jobs of which no table or experiment has a record."""
    lent = [job.trial_name for job, _ in lent_records(jobs, results)]
    return [job for job in missing_jobs(jobs, results) if job.trial_name not in lent]


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    results: Path,
    reporting: Reporting,
    *,
    at_once: int | None = None,
    data_dir: Path | None = None,
    limit: TimeLimit | None = None,
) -> FleetOutcome:
    """Train the jobs that have no record yet into the fleet ``out``, going on with what is there; keep each record as it comes.

    ``limit``: see ``TimeLimit``; what it leaves undone is left for the next call.
    """
    collect(jobs, out, results)
    borrow(jobs, results)
    missing = missing_jobs(jobs, results)
    if not missing:
        return FleetOutcome([], None)
    for corpus in {job.corpus for job in missing}:
        refuse_other_text(corpus, data_dir)
    trials = [_trial(job, out, data_dir) for job in missing]
    _refuse_other_runs(trials, out)
    by_name, spent = {job.trial_name: job for job in missing}, _Spent(results / missing[0].corpus / SPENT, missing)

    def ended(trial: Trial, record: Record) -> None:
        spent.note(len(collect([by_name[trial.name]], out, results)), record)

    try:
        return _train(trials, out, reporting, at_once, limit, ended)
    finally:
        collect(missing, out, results)
        spent.note()


def run_rounds(
    planned: Callable[[], Sequence[Job]],
    settle: Callable[[], None],
    out: Path,
    results: Path,
    reporting: Reporting,
    *,
    at_once: int | None = None,
    data_dir: Path | None = None,
    limit: TimeLimit | None = None,
) -> FleetOutcome:
    """Train what is planned, and then, in what is left of the limit, what is planned once that has ended and is settled.

    What has ended is settled in any case, so that it is not lost where time is up.
    """
    began, done, outcome = monotonic(), list[Job](), FleetOutcome([], None)
    train = partial(run_jobs, out=out, results=results, reporting=reporting, at_once=at_once, data_dir=data_dir)
    settle()
    while outcome.ran_through and (new := [job for job in planned() if job not in done]):
        outcome = outcome.followed_by(train(new, limit=limit and limit.after(monotonic() - began)))
        done += new
        settle()
    return outcome


def collect(jobs: Sequence[Job], out: Path, results: Path) -> list[Job]:
    """Copy record and metrics of every run that has ended to its place in ``results``; return the jobs that had one.

    A record that is there already stays: it may be newer than the run in ``out``.
    """
    kept = []
    for job in missing_jobs(jobs, results):
        folder = RunFolder(out / job.trial_name)
        if not folder.record_path.is_file():
            continue
        record = folder.read_record()
        if not _is_of(job, record):
            continue
        target = job.record_folder(results)
        if folder.metrics_path.is_file():
            write_atomically(target / "metrics.jsonl", folder.metrics_path.read_bytes())
        text = json.dumps(_without_paths(record), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(target / "record.json", f"{text}\n".encode())
        kept.append(job)
    return kept


def borrow(jobs: Sequence[Job], results: Path) -> list[Job]:
    """Copy the records that another table or experiment has of the very same run; return the jobs that had one."""
    lent = lent_records(jobs, results)
    for job, folder in lent:
        for name in ("metrics.jsonl", "record.json"):
            if (folder / name).is_file():
                write_atomically(job.record_folder(results) / name, (folder / name).read_bytes())
    return [job for job, _ in lent]


def lent_records(jobs: Sequence[Job], results: Path) -> list[tuple[Job, Path]]:
    """Return the jobs without a record of which another table or experiment has one, with the folder that holds it."""
    wanted = [job for job in missing_jobs(jobs, results) if job.share == 1 and not job.alone]
    corpora = {job.corpus for job in wanted}
    found = {path.parent: RunFolder(path.parent).read_record() for corpus in corpora for path in _records(results / corpus)}
    lent = []
    for job in wanted:
        same = [it for it, record in found.items() if record.get("recipe") == job.config.name and _is_of(job, record)]
        lent += [(job, folder) for folder in same[:1]]
    return lent


def _records(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*/record.json"))


def _train(
    trials: list[Trial], out: Path, reporting: Reporting, at_once: int | None, limit: TimeLimit | None, ended: Ended
) -> FleetOutcome:
    if not is_fleet(out):
        return start_fleet(trials, out, reporting, at_once, limit=limit, ended=ended)
    return resume_fleet(out, reporting, at_once, limit=limit, ended=ended, instead=trials)


def _trial(job: Job, out: Path, data_dir: Path | None) -> Trial:
    values = {"data.name": data_for(job.corpus, job.share, out, data_dir)}
    if data_dir is not None:
        values["data.data_dir"] = str(data_dir)
    return Trial(job.trial_name, from_anywhere(with_values(job.config, values, "--data-dir")))


def _refuse_other_runs(trials: Sequence[Trial], out: Path) -> None:
    """A run's folder goes on with its own configuration, so it must be the one that is wanted now."""
    for trial in trials:
        folder = RunFolder(out / trial.name)
        if not folder.config_path.is_file():
            continue
        if other := differing(to_mapping(load_config(folder.config_path)), to_mapping(trial.config)):
            raise InputError(
                f"{folder.path} was begun with another {', '.join(other)}; remove that folder, or give another --out"
            )


def refuse_other_text(corpus: str, data_dir: Path | None) -> None:
    """Refuse a copy of a corpus that is not the standard one: its figures could not stand beside the paper's."""
    if not standard_checksums(corpus):
        return
    folder = locate(corpus, data_dir)
    if wrong := [file for file, status in check(KNOWN[corpus], folder).items() if status != "ok"]:
        raise InputError(
            f"{folder}: {', '.join(wrong)} is not that of the standard copy, so no figure could be compared with the paper's; "
            f"see 'varsmooth data check {corpus}'"
        )


def _is_recorded(job: Job, results: Path) -> bool:
    folder = RunFolder(job.record_folder(results))
    return folder.record_path.is_file() and _is_of(job, folder.read_record())


def _is_of(job: Job, record: dict[str, Any]) -> bool:
    return has_ended(record) and record.get("seed") == job.config.train.seed and fits(job, record)


def _without_paths(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with names of data in place of paths, which mean nothing elsewhere."""
    config, data = record.get("config") or {}, record.get("data") or {}
    own = config.get("data", {})
    named = {**own, "name": Path(own.get("name", "")).name, "data_dir": ""}
    return {**record, "data": {**data, "name": Path(data.get("name", "")).name}, "config": {**config, "data": named}}


class _Spent:
    """A line on what this fleet has cost so far, written anew as runs end; a run's own seconds include the others' turns."""

    def __init__(self, path: Path, jobs: Sequence[Job]) -> None:
        self.path, self.began = path, monotonic()
        session = datetime.now(UTC).isoformat(timespec="microseconds")
        groups = list(dict.fromkeys(job.group for job in jobs))
        self.line: dict[str, Any] = {"session": session, "groups": groups, "runs": len(jobs)}
        self.finished, self.hardware = 0, None

    def note(self, finished: int = 0, record: Record | None = None) -> None:
        self.finished += finished
        self.hardware = self.hardware or ((record or {}).get("hardware") or {}).get("name")
        if self.hardware is None:  # no run was under way
            return
        seconds = round(monotonic() - self.began, 1)
        line = {**self.line, "finished": self.finished, "seconds": seconds, "hardware": self.hardware}
        replace_line(self.path, line, "session")


def replace_line(path: Path, line: dict[str, Any], key: str) -> None:
    """Write a line of JSON at the end of a file, in place of the one that has the same ``key``; the others stay."""
    texts = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    others = [text for text in texts if json.loads(text).get(key) != line[key]]
    write_atomically(path, "".join(f"{text}\n" for text in [*others, json.dumps(line)]).encode())
