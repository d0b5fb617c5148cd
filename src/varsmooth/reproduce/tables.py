"""The paper's table with ours beside it, cell by cell, and what else the records of a table say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from varsmooth.experiment.seeds import Spread
from varsmooth.report.runs import RunSummary
from varsmooth.reproduce import markdown
from varsmooth.reproduce.bands import band_figures, bands_part, relative
from varsmooth.reproduce.catalogue import SIZES, CorpusPlan, Row, corpora, paper_cell, paper_sampling
from varsmooth.reproduce.jobs import table_group
from varsmooth.reproduce.markdown import (
    NOT_RUN,
    PagePart,
    pair,
    paper_shown,
    paragraphs,
    records_table,
    seeds_shown,
    shown,
    table_with_gaps,
)
from varsmooth.reproduce.pace import steps_shown
from varsmooth.reproduce.records import (
    PREDICTIONS,
    Records,
    difference,
    over_seeds,
    passed_over,
    perplexity,
    sampled_perplexity,
    scaled_perplexity,
)
from varsmooth.train.record import result_of

BASELINE = "vanilla"
Runs = dict[str, list[RunSummary]]


def main_table(records: Records, plan: CorpusPlan, group: str) -> PagePart:
    """Return valid and test perplexity by each row's own prediction beside the paper's; missing rows leave gaps."""
    size = int(group.partition("-")[0])
    runs = records.runs(plan.name, group)
    header = ["model", "seeds", "valid, paper", "valid", "test, paper", "test", "below the paper"]
    header += ["test, tuned temperature", "test, tuned scales"]
    rows = [_main_row(plan.name, size, row, runs.get(row.name, [])) for row in plan.rows]
    missing = [row.label for row in plan.rows if row.name not in runs]
    told = [_gains(plan, runs), _interpolation(plan.name, size, runs), passed_over(records.group(plan.name, group))]
    return table_with_gaps(paragraphs(markdown.table(header, rows), *told), missing, empty=len(missing) == len(rows))


def predictions_table(records: Records, plan: CorpusPlan, group: str) -> PagePart:
    """Return every prediction, valid / test, at temperature 1 and at the one tuned on valid."""
    runs = records.runs(plan.name, group)
    rows = []
    for row in _present(plan, runs):
        members = runs[row.name]
        cells = [
            pair(*(perplexity(members, split, predict, tuned=tuned) for split in ("valid", "test")))
            for tuned in (False, True)
            for predict in PREDICTIONS
        ]
        rows.append([row.label, *cells])
    header = ["model", *PREDICTIONS, *(f"{predict}, tuned temperature" for predict in PREDICTIONS)]
    return records_table(header, rows)


def sampling_table(records: Records, plan: CorpusPlan) -> PagePart:
    """Return development perplexities by draws beside the paper's, which averages log-likelihoods."""
    rows, missing = [], []
    for size in SIZES:
        runs, paper = records.runs(plan.name, table_group(size, "paper", "full")), paper_sampling(plan.name, size)
        for row in plan.rows:
            if row.name not in paper:
                continue
            members = runs.get(row.name, [])
            draws = [sampled_perplexity(members, "valid", average) for average in ("geometric", "arithmetic")]
            missing += [f"{row.label}, {size}"] if draws[0] is None else []
            fixed = perplexity(members, "valid")
            rows.append([row.label, str(size), paper_shown(paper.get(row.name)), *map(shown, draws), shown(fixed)])
    if not rows:
        return PagePart("The paper has no figures for this corpus.", empty=True)
    header = ["model", "size", "paper", "log-likelihoods averaged", "probabilities averaged", "without draws"]
    return table_with_gaps(markdown.table(header, rows), missing, empty=len(missing) == len(rows))


def speed_table(records: Records, plan: CorpusPlan, group: str) -> PagePart:
    """Return after how many steps each row reaches the development perplexity that the paper's tied vanilla ends with."""
    goal = paper_cell(plan.name, int(group.partition("-")[0]), BASELINE).valid or 0.0
    runs = records.runs(plan.name, group)
    rows = []
    for row in _present(plan, runs):
        members = runs[row.name]
        rows.append([row.label, steps_shown(members, goal), shown(members[0].record.get("steps"), 0)])
    header = ["model", f"steps to {goal} on valid", "steps in all"]
    return records_table(header, rows)


def bands_table(records: Records, plan: CorpusPlan, group: str) -> PagePart:
    """Return test perplexity by the target's training count, vanilla beside the best smoothing row, each at its temperature."""
    runs = records.runs(plan.name, group)
    best = best_smoothing(plan, runs)
    if best is None or BASELINE not in runs:
        return NOT_RUN
    plain, smoothed = (band_figures(runs[name]) for name in (BASELINE, best.name))
    rows = [[_label(plan, BASELINE), *map(shown, plain)], [best.label, *map(shown, smoothed)]]
    return bands_part(runs[BASELINE], [*rows, ["change", *map(relative, plain, smoothed)]])


def calibration_table(records: Records, plan: CorpusPlan, group: str) -> PagePart:
    """Return the expected calibration error on test before and after the temperature, and the temperature."""
    runs = records.runs(plan.name, group)
    rows = []
    for row in _present(plan, runs):
        members = runs[row.name]
        temperature = over_seeds(members, lambda run: (result_of(run.record, "test", tuned=True) or {}).get("temperature"))
        errors = [over_seeds(members, partial(_calibration_error, tuned=tuned)) for tuned in (False, True)]
        rows.append([row.label, *(shown(error, 4) for error in errors), shown(temperature, 3)])
    header = ["model", "error at temperature 1", "at the tuned temperature", "temperature"]
    return records_table(header, rows)


def headline_table(records: Records) -> PagePart:
    """Return test perplexities of the headline rows, eight at most: the paper's, ours in its setting, and ours tuned."""
    plans = list(corpora().values())
    header = ["model", "units"]
    for plan in plans:
        header += [f"{plan.title}: paper", "ours, its setting", "ours, tuned"]
    runs = {
        (plan.name, size, setting): records.runs(plan.name, table_group(size, setting, "full"))
        for plan in plans
        for size in SIZES
        for setting in ("paper", "tuned")
    }
    rows = []
    for size in SIZES:
        for row in [row for row in plans[0].rows if row.headline]:
            cells = [row.label, str(size)]
            for plan in plans:
                ours = [runs[plan.name, size, setting].get(row.name, []) for setting in ("paper", "tuned")]
                cells += [
                    paper_shown(paper_cell(plan.name, size, row.name).test),
                    *(shown(perplexity(it, "test")) for it in ours),
                ]
            rows.append(cells)
    known = any(row.name in found for found in runs.values() for row in plans[0].rows if row.headline)
    return table_with_gaps(markdown.table(header, rows), empty=not known)


def best_smoothing(plan: CorpusPlan, runs: Runs) -> Row | None:
    """Return the variational row with the lowest development perplexity at its tuned temperature."""
    best = best_smoothed({row.name: runs[row.name] for row in _present(plan, runs)})
    return next((row for row in plan.rows if row.name == best), None)


def best_smoothed(rows: Mapping[str, Sequence[RunSummary]], predicts: Mapping[str, str | None] | None = None) -> str | None:
    """Return the name of the smoothed runs that are best on valid at their tuned temperature, each by its prediction.

    A row of which a seed diverged, or is still to come, while another has them all, is none to be chosen.
    """
    smoothed = {name: runs for name, runs in rows.items() if runs and _method(runs[0]) == "variational"}
    most = max(map(len, smoothed.values()), default=0)
    whole = {name: runs for name, runs in smoothed.items() if len(runs) == most}
    valid = {name: perplexity(runs, "valid", (predicts or {}).get(name), tuned=True) for name, runs in whole.items()}
    known = {name: found.mean for name, found in valid.items() if found is not None}
    return min(known, key=known.__getitem__) if known else None


def _main_row(corpus: str, size: int, row: Row, runs: Sequence[RunSummary]) -> list[str]:
    paper, valid, test = paper_cell(corpus, size, row.name), perplexity(runs, "valid"), perplexity(runs, "test")
    below = None if paper.test is None or test is None else paper.test - test.mean
    ours = partial(shown, seeds=len({run.seed for run in runs}))
    figures = [paper_shown(paper.valid), ours(valid), paper_shown(paper.test), ours(test), shown(below, 1)]
    controls = [ours(perplexity(runs, "test", tuned=True)), ours(scaled_perplexity(runs, "test"))]
    return [row.label, seeds_shown([run.seed for run in runs]), *figures, *controls]


def _gains(plan: CorpusPlan, runs: Runs) -> str:
    """Compare smoothing with tied vanilla: the element-wise row, of which the paper claims most, and the best."""
    element = next(row for row in plan.rows if row.name == "element-kneser-ney")
    best = best_smoothing(plan, runs)
    sentences = []
    if gain := _gain(runs, element, tuned=False):
        sentences.append(f"{element.label}, at temperature 1: {gain}")
    if best and (gain := _gain(runs, best, tuned=True)):
        sentences.append(f"{best.label}, the best smoothing row on valid, both at their tuned temperatures: {gain}")
    return f"Against tied vanilla, test perplexity. {'; '.join(sentences)}." if sentences else ""


def _gain(runs: Runs, row: Row | None, *, tuned: bool) -> str:
    """Compare a row with tied vanilla on test."""
    return gain_shown(runs.get(BASELINE, []), runs.get(row.name, []) if row else [], tuned=tuned)


def gain_shown(
    plain_runs: Sequence[RunSummary], smoothed_runs: Sequence[RunSummary], predict: str | None = None, *, tuned: bool
) -> str:
    """Say how much better or worse than the plain model a row is on test, ± the standard error, over the seeds of both.

    Nothing where there are none.
    """
    common = {run.seed for run in plain_runs} & {run.seed for run in smoothed_runs}
    plain = perplexity([run for run in plain_runs if run.seed in common], "test", tuned=tuned)
    smoothed = perplexity([run for run in smoothed_runs if run.seed in common], "test", predict, tuned=tuned)
    if plain is None or smoothed is None:
        return ""
    return f"{_distance(smoothed, plain)} {'better' if smoothed.mean < plain.mean else 'worse'}"


def _distance(one: Spread, other: Spread) -> str:
    """How far two means are apart, ± the standard error where both have seeds."""
    found = difference(one, other)
    return shown(replace(found, mean=abs(found.mean)))


def _interpolation(corpus: str, size: int, runs: Runs) -> str:
    """Say which of the two schemes is ahead in smoothing words, and which was in the paper."""
    rows = ("smoothing-linear-interpolation", "smoothing-kneser-ney")
    ours = [perplexity(runs.get(row, []), "test") for row in rows]
    theirs = [paper_cell(corpus, size, row).test for row in rows]
    if ours[0] is None or ours[1] is None:
        return ""
    told = ""
    if theirs[0] is not None and theirs[1] is not None:
        told = f"; in the paper {abs(theirs[0] - theirs[1]):.1f} {_side(theirs[0], theirs[1])}"
    side = _side(ours[0].mean, ours[1].mean)
    return f"Word smoothing by linear interpolation is {_distance(ours[0], ours[1])} {side} Kneser-Ney on test{told}."


def _side(one: float, other: float) -> str:
    return "below" if one < other else "above"


def _present(plan: CorpusPlan, runs: Runs) -> list[Row]:
    return [row for row in plan.rows if row.name in runs]


def _label(plan: CorpusPlan, name: str) -> str:
    return next((row.label for row in plan.rows if row.name == name), name)


def _method(run: RunSummary) -> str:
    return str((run.record.get("config") or {}).get("smoothing", {}).get("method", "none"))


def _calibration_error(run: RunSummary, tuned: bool) -> float | None:
    found = (result_of(run.record, "test", tuned=tuned) or {}).get("calibration") or {}
    return found.get("error")
