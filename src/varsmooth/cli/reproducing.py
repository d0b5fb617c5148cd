"""varsmooth reproduce"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from varsmooth.bench import Plan
from varsmooth.cli.app import FAILED, app, errors
from varsmooth.cli.fleets import parse_limit
from varsmooth.cli.options import Whole, parse_names, parse_numbers, parse_whole_numbers
from varsmooth.cli.output import lasting_console
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting
from varsmooth.files import write_atomically
from varsmooth.fleet import FleetOutcome, TimeLimit
from varsmooth.report.plots import MissingPlotError
from varsmooth.reproduce import (
    Budget,
    Choice,
    Job,
    Parts,
    Setting,
    all_parts,
    build_page,
    check_parts,
    choose_among,
    choose_below,
    corpus_plan,
    finalist_jobs,
    jobs_to_train,
    missing_jobs,
    read_chosen,
    run_rounds,
    table_group,
    write_documents,
)
from varsmooth.reproduce.chosen import FILE, Key
from varsmooth.reproduce.cost import cost_plans, measure_cost, missing_plans, plan_name
from varsmooth.reproduce.experiments import Part
from varsmooth.reproduce.page import Page, corpus_page
from varsmooth.reproduce.parts import TABLES
from varsmooth.train.build import resolve_device

COST = "cost"
RESULTS = Path("results/reproduce")


@app.command
def reproduce(
    corpus: str,
    *,
    size: Whole = 512,
    rows: str | None = None,
    seeds: str | None = None,
    setting: Setting = "paper",
    budget: Budget = "full",
    experiment: str | None = None,
    points: str | None = None,
    all_: bool = False,
    choose_from: Path | None = None,
    finalists: Whole | None = None,
    out: Path | None = None,
    results: Path = RESULTS,
    data_dir: Path | None = None,
    at_once: Whole | None = None,
    minutes: float | None = None,
    within: float | None = None,
    dry_run: bool = False,
    from_records: bool = False,
    write_docs: bool = False,
    json_: bool = False,
) -> int:
    """Reproduce the paper's table on a corpus: train what has no record yet, and build tables and figures from records.

    Runs go through a fleet, which goes on where it was stopped. Record and metrics of each finished run are copied to
    RESULTS/CORPUS/SIZE-SETTING/ROW-seedN, and everything shown is built from there. Values that tuning chose are read from
    RESULTS/CORPUS/chosen.toml; without it a row has those of its recipe. Status 1 says that a run failed; where --minutes are
    up it is 0, and the same command goes on.

    Examples:

        varsmooth reproduce ptb --dry-run
        varsmooth reproduce ptb --rows vanilla,element-kneser-ney --seeds 1,2,3
        varsmooth reproduce wikitext-2 --setting tuned
        varsmooth reproduce ptb --experiment gamma
        varsmooth reproduce wikitext-2 --experiment data-size --points 0.05,0.1
        varsmooth reproduce wikitext-2 --experiment tuning-kind,512-tuned
        varsmooth reproduce ptb --size 1024 --minutes 9 --within 25
        varsmooth reproduce wikitext-2 --all --dry-run
        varsmooth reproduce ptb --setting tuned --choose-from sweeps/tuning
        varsmooth reproduce ptb --setting tuned --finalists 3
        varsmooth reproduce ptb --from-records --write-docs

    Some experiments are trials, whose names begin with tuning-: once all of one have ended, the best of each row is written to
    chosen.toml. Others have trials of their own first. What follows from trials is run by the same call, and a dry run knows of
    it only once they have ended.

    Parameters
    ----------
    corpus
        `ptb` or `wikitext-2`.
    size
        Units per layer, 512 or 1024.
    rows
        Rows of the table with commas between them; all of them unless given (in the tuned setting: all that were tuned). With
        --experiment: its arms.
    seeds
        Such as 1,2,3; those that are planned for the corpus and size unless given.
    setting
        `paper`: dropout as in the paper; `tuned`: every row with the dropout that was found for it.
    budget
        `quick` trains briefly, to see that all works; its records are kept apart.
    experiment
        Instead of the table: gamma, ablation, beside-dropout, rare-words, length, length-1024, grid, alone, tuning-paper,
        tuning-512, tuning-rate, tuning-warm-up, tuning-blank, tuning-kind, tuning-1024, tuning-wide, data-size, data-size-zero
        or cost.
        Several, with commas between them, go through one fleet in this order, and tables may be among them, as 512-paper,
        512-tuned, 1024-paper or 1024-tuned.
    points
        With --experiment that draws a curve: some of its values, with commas between them; all of them unless given.
    all_
        Every table and experiment of the corpus in one fleet, tables first, as far as what they build on has been chosen;
        `alone` and `cost`, which need the machine to themselves, are left out.
    choose_from
        Train nothing: the runs below this folder, a sweep's, are trials of the rows they are named after; the best of each row
        on the development set is written to chosen.toml for this setting, with all of them. Trials that it has already stay.
    finalists
        Instead of the table: train this many of each row's best trials in chosen.toml as long as a final run, with a seed of
        their own, and choose among them once all have ended.
    out
        The folder for runs and page; runs/reproduce/CORPUS unless given.
    results
        Where records are kept.
    data_dir
        Where ptb/ and wikitext-2/ lie; else $VARSMOOTH_DATA.
    at_once
        How many runs train at the same time; 8 on a GPU and 1 on the CPU unless given.
    minutes
        After this many minutes save the runs under way and stop. No run is begun that would not end in time at the pace
        measured so far.
    within
        With --minutes: begin also what would end within this many minutes, because the same command will be given again.
    dry_run
        Only say what is missing.
    from_records
        Train nothing: neither data nor a GPU is needed.
    write_docs
        Also fill the tables and figures of README.md and docs/reproduction.md in this folder.
    json_
        Print the tables, and what is missing, as JSON.
    """
    plan = corpus_plan(corpus)
    out = out or Path("runs/reproduce") / corpus
    chosen_path = results / corpus / FILE
    _refuse_together(choose_from=choose_from, finalists=finalists, experiment=experiment, all=all_)
    if choose_from is not None:
        _refuse_together("choose-from", rows=rows, seeds=seeds, points=points, dry_run=dry_run, from_records=from_records)
        return _say_chosen(choose_below(choose_from, plan, setting, chosen_path), json_)
    if from_records and not results.is_dir():
        raise InputError(f"--results {results}: there is no such folder, so there are no records")
    if points is not None and experiment in (None, COST):
        raise InputError("--points goes with an --experiment that draws a curve, such as gamma")
    limit = parse_limit(minutes, within)
    part: Part = {
        "budget": budget,
        "arms": parse_names("--rows", rows),
        "seeds": parse_whole_numbers("--seeds", seeds, "1,2,3"),
        "points": parse_numbers("--points", points, "0.05,0.1"),
    }
    if finalists is not None:
        _refuse_together("finalists", seeds=seeds, from_records=from_records)
        chosen = read_chosen(chosen_path)
        jobs = finalist_jobs(plan, chosen, finalists, size=size, setting=setting, budget=budget, rows=part["arms"])
        choosing = partial(choose_among, jobs, results, plan, setting, chosen_path)
        work = _Work([f"{corpus}/chosen"], lambda: jobs, choose=choosing if budget == "full" else dict)
    elif experiment == COST:
        _refuse_table("experiment", size, setting)
        _refuse_together("experiment cost", rows=rows, seeds=seeds, budget=budget != "full")
        work = _Work([COST], measurements=[] if from_records else _cost_plans())
    elif all_:
        _refuse_together("all", rows=rows, seeds=seeds)
        _refuse_table("all", size, setting)
        work = _parts_work(Parts(plan, all_parts(plan, budget), results, {"budget": budget}), ["headline"])
    elif experiment is not None:
        _refuse_table("experiment", size, setting)
        names = parse_names("--experiment", experiment)
        if len(names) > 1 or names[0] in TABLES:
            _refuse_together(f"experiment {experiment}", rows=rows, seeds=seeds, points=points)
        check_parts(names, plan, [COST])
        work = _named_parts(Parts(plan, names, results, part), from_records)
    else:
        work = _named_parts(Parts(plan, [table_group(size, setting, "full")], results, part), from_records)
    if dry_run:
        return _say_missing(work, results, json_)
    outcome = FleetOutcome([], None)
    if not from_records:
        console = errors if json_ else lasting_console()
        outcome = _do(work, results, out / "fleet", Reporting(console), at_once, data_dir, limit)
    left, waiting = _left(work, results), len(work.waiting())
    page = build_page(results)
    written = [*_write_page(page, corpus, out), *(write_documents(Path(), page) if write_docs else [])]
    _show(page, work.shown, left, written, json_)
    return _status(outcome, len(left), waiting)


@dataclass(frozen=True)
class _Work:
    """What a call is about: the parts of the page that it shows, and what they need."""

    shown: list[str]
    planned: Callable[[], list[Job]] = list
    """the runs that are known by now"""
    waiting: Callable[[], list[Job]] = list
    """those that wait for what others will choose"""
    choose: Callable[[], dict[Key, Choice]] = dict
    """among the trials that have ended"""
    measurements: list[Plan] = field(default_factory=list)
    alone: bool = False
    """whether no two of its runs may train at the same time"""


def _named_parts(parts: Parts, from_records: bool) -> _Work:
    # Records can be shown without knowing what was chosen.
    if not from_records:
        parts.check()
    return _parts_work(parts, [f"{parts.plan.name}/{group}" for group in parts.groups()])


def _parts_work(parts: Parts, shown: list[str]) -> _Work:
    alone = any(job.alone for job in parts.jobs())
    return _Work(shown, parts.jobs, parts.waiting, parts.choose, alone=alone)


def _do(
    work: _Work,
    results: Path,
    fleet: Path,
    reporting: Reporting,
    at_once: int | None,
    data_dir: Path | None,
    limit: TimeLimit | None,
) -> FleetOutcome:
    if work.measurements:
        measure_cost(results, work.measurements, _observe, limit)
        return FleetOutcome([], None, out_of_time=bool(missing_plans(results, work.measurements)))

    def settle() -> None:
        for line in _choice_lines(work.choose()):
            errors.print(f"chosen: {line}")

    at_once = 1 if work.alone else at_once
    return run_rounds(work.planned, settle, fleet, results, reporting, at_once=at_once, data_dir=data_dir, limit=limit)


def _refuse_together(first: str = "", **given: object) -> None:
    """Refuse more than one of these, where ``first`` is one that was given."""
    names = [*([first] if first else []), *(name.replace("_", "-") for name, value in given.items() if value)]
    if len(names) > 1:
        raise InputError(f"--{names[0]} does not go with --{names[1]}")


def _refuse_table(flag: str, size: int, setting: Setting) -> None:
    if (size, setting) != (512, "paper"):
        raise InputError(f"--{flag} does not go with --size or --setting: they name a table, and every experiment has its own")


def _say_chosen(choices: dict[Key, Choice], as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"row": row, "size": size, "setting": of, **asdict(it)} for (of, size, row), it in choices.items()]))
        return 0
    for line in _choice_lines(choices):
        print(line)
    return 0


def _choice_lines(choices: dict[Key, Choice]) -> list[str]:
    shown = {key: " ".join(f"{name}={value}" for name, value in it.set.items()) for key, it in choices.items()}
    return [
        f"{setting} {size} {row}: {shown[setting, size, row] or 'as the recipe'} ({len(choice.trials)} trials)"
        for (setting, size, row), choice in choices.items()
    ]


def _observe(name: str, number: int, total: int) -> None:
    errors.print(f"{number + 1}/{total} {name}")


def _cost_plans() -> list[Plan]:
    device = resolve_device("auto")
    if device.type != "cuda":
        raise InputError("--experiment cost needs a GPU; 'varsmooth bench' measures a smaller model on the CPU")
    return cost_plans(device)


def _left(work: _Work, results: Path) -> list[str]:
    """Name what has no record."""
    plans = missing_plans(results, work.measurements)
    return [*(job.trial_name for job in missing_jobs(work.planned(), results)), *map(plan_name, plans)]


def _say_missing(work: _Work, results: Path, as_json: bool) -> int:
    """Name what would be trained or measured, which leaves out what another table or experiment has a record of."""
    known = work.planned()
    jobs, planned, waiting = jobs_to_train(known, results), len(known) + len(work.measurements), len(work.waiting())
    missing = [*(job.trial_name for job in jobs), *map(plan_name, missing_plans(results, work.measurements))]
    steps = sum(job.config.train.steps for job in jobs)
    if as_json:
        print(json.dumps({"planned": planned, "missing": missing, "steps": steps, "waiting": waiting}))
        return 0
    for name in missing:
        print(name)
    errors.print(f"{len(missing)} of {planned} runs are missing" + (f", {steps:,} steps in all" if steps else ""))
    if waiting:
        errors.print(f"{waiting} more wait for what their trials choose; some may have records that still fit")
    return 0


def _write_page(page: Page, corpus: str, out: Path) -> list[Path]:
    """Write the page of a corpus with its pictures beside it; without matplotlib, the page alone."""
    written = [out / "page.md"]
    write_atomically(written[0], corpus_page(page, corpus_plan(corpus)).encode())
    for name, draw in page.pictures.items():
        if name.startswith((f"{corpus}-", f"{COST}-")):
            try:
                write_atomically(out / name, draw())
            except MissingPlotError as error:
                errors.print(f"varsmooth: no pictures: {error}")
                break
            written.append(out / name)
    return written


def _show(page: Page, shown: Sequence[str], missing: Sequence[str], written: Sequence[Path], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"parts": page.parts, "missing": missing, "written": [str(path) for path in written]}))
        return
    print("\n\n".join(page.parts[name] for name in shown))
    if missing:
        errors.print(f"{len(missing)} runs are missing; without --from-records they are trained, with --dry-run listed")
    for path in written:
        errors.print(f"written: {path}")


def _status(outcome: FleetOutcome, left: int, waiting: int) -> int:
    if outcome.signal is not None:
        errors.print("varsmooth: stopped; the same command goes on")
        return 128 + outcome.signal
    if outcome.out_of_time:
        others = f", and {waiting} wait for what their trials choose" if waiting else ""
        errors.print(f"varsmooth: the time is up, {left} runs are left{others}; the same command goes on")
    failed = [record for record in outcome.records if record["status"] == "failed"]
    for record in failed:
        errors.print(f"varsmooth: {record['name']} failed: {record.get('reason')}")
    return FAILED if failed else 0
