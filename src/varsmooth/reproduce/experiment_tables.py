"""What the records of an experiment say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from varsmooth.experiment.seeds import Spread
from varsmooth.report.runs import RunSummary
from varsmooth.reproduce import markdown
from varsmooth.reproduce.bands import band_figures, bands_part
from varsmooth.reproduce.catalogue import Budget
from varsmooth.reproduce.experiments import SHARE, Arm, Experiment, group_of, point_name
from varsmooth.reproduce.jobs import table_group
from varsmooth.reproduce.markdown import (
    NOTHING,
    PagePart,
    paragraphs,
    records_table,
    seeds_shown,
    settings_shown,
    shown,
    table_with_gaps,
)
from varsmooth.reproduce.records import (
    Records,
    best_prediction,
    difference,
    over_seeds,
    passed_over,
    perplexity,
    scaled_perplexity,
)
from varsmooth.reproduce.trials import best_runs, best_variant, judged_by
from varsmooth.train.record import own_prediction

Curves: TypeAlias = dict[str, list[tuple[float, Spread]]]
"""Points by the label of their arm."""
REFERENCE = "the plain model of the table"


def curves(experiment: Experiment, records: Records, corpus: str, budget: Budget = "full", *, scaled: bool = False) -> Curves:
    """Return the points that have been run, by the label of their arm; with tuned scales, the label says so."""
    found: Curves = {}
    for arm in experiment.arms:
        runs = [best_runs(experiment, records, corpus, arm, place, budget) for place in range(len(experiment.values))]
        figures = zip(experiment.values, [_figure(experiment, each, scaled=scaled) for each in runs], strict=True)
        label = f"{arm.label}, tuned scales" if scaled else arm.label
        found[label] = [(value, figure) for value, figure in figures if figure is not None]
    return found


def experiment_table(experiment: Experiment, records: Records, corpus: str, budget: Budget = "full") -> PagePart:
    """Return what the records of an experiment say, with gaps for what has not been run."""
    kind = _trials_table if experiment.trials else _curve_table if experiment.vary else _arms_table
    kind = _times_table if experiment.alone else kind
    found = kind(experiment, records, corpus, budget)
    others = passed_over(records.group(corpus, group_of(experiment, budget)))
    return PagePart(paragraphs(found.text, others), empty=found.empty and not others)


def _curve_table(experiment: Experiment, records: Records, corpus: str, budget: Budget) -> PagePart:
    found = curves(experiment, records, corpus, budget)
    # A stricter control than the temperature, for little text, which needs it.
    scaled = curves(experiment, records, corpus, budget, scaled=True) if experiment.vary == SHARE else {}
    gains = gain_curves(found) | gain_curves(scaled) if scaled else {}
    nothing = not any(found.values())
    reference = [f"{REFERENCE}: {shown(it[0][1])}" for it in reference_curve(experiment, records, corpus, budget).values()]
    compared = "" if nothing or not reference else f"For comparison, {reference[0]}."
    tables = [
        _values_table(f"below {experiment.arms[0].label}, by {experiment.axis}", experiment, gains) if gains else "",
        _values_table(experiment.axis, experiment, found | scaled),
    ]
    return table_with_gaps(paragraphs(*tables, compared), _missing_points(experiment.values, found), empty=nothing)


def _values_table(title: str, experiment: Experiment, found: Curves) -> str:
    header = [title, *(f"{value:g}" for value in experiment.values)]
    rows = [[label, *(shown(dict(points).get(value)) for value in experiment.values)] for label, points in found.items()]
    return markdown.table(header, rows)


def _missing_points(values: Sequence[float], found: Curves) -> list[str]:
    """Name the values that no arm has been run at, and the arms that are missing at others."""
    missing = []
    for value in values:
        absent = [label for label, points in found.items() if value not in dict(points)]
        missing += [f"{value:g}"] if len(absent) == len(found) else [f"{label} at {value:g}" for label in absent]
    return missing


def choices_table(experiment: Experiment, records: Records, corpus: str) -> PagePart:
    """Return which of its variants each arm chose at each value, and what that has on valid."""
    group, rows = records.group(corpus, group_of(experiment, "full")), []
    for place, value in enumerate(experiment.values):
        for arm in experiment.arms:
            best = best_variant(experiment, group, arm, place) if value != experiment.in_table else None
            if best is None:
                continue
            variants = arm.variants_at(place)
            apart = {key: it for key, it in variants[best].items() if any(other.get(key) != it for other in variants)}
            valid = judged_by(experiment, group.runs.get(point_name(arm, value, best), []))
            predict = best_prediction(best_runs(experiment, records, corpus, arm, place)) or NOTHING
            rows.append([f"{value:g}", arm.label, settings_shown(apart), str(len(variants)), shown(valid), predict])
    judged = "its best valid" if experiment.final_seeds else "its valid, tuned temperature"
    header = [experiment.axis, "model", "chosen", "variants tried", judged, "best prediction on valid"]
    return records_table(header, rows, texts=3)


def reference_curve(experiment: Experiment, records: Records, corpus: str, budget: Budget = "full") -> Curves:
    """Return the figure that an experiment's curves are to be compared with, at every value; nothing where there is none."""
    runs = records.runs(corpus, table_group(experiment.size, experiment.setting, budget)).get(experiment.reference, [])
    figure = _figure(experiment, runs)
    return {} if figure is None else {REFERENCE: [(value, Spread(figure.mean, None, 1)) for value in experiment.values]}


def gain_curves(found: Curves) -> Curves:
    """Return how far each later arm is below the first, where both have been run, ± the standard error."""
    (_, first), *others = found.items()
    plain = dict(first)
    return {
        label: [(value, difference(plain[value], figure)) for value, figure in points if value in plain]
        for label, points in others
    }


def arm_bands_table(experiment: Experiment, records: Records, corpus: str, budget: Budget = "full") -> PagePart:
    """Return test perplexity by the target's training count, of every arm that was run, by its own prediction and the mode."""
    found, rows = [line for line in _arm_lines(experiment, records, corpus, budget) if line.runs], []
    for arm, label, runs in found:
        own = arm.predict or own_prediction(runs[0].record)
        by = {f"{label}, by the {predict}": band_figures(runs, predict) for predict in (own, "mode")}
        rows += [[name, *map(shown, figures)] for name, figures in by.items()]
    return bands_part([run for line in found for run in line.runs], rows)


def _arms_table(experiment: Experiment, records: Records, corpus: str, budget: Budget) -> PagePart:
    lines, rows = _arm_lines(experiment, records, corpus, budget), []
    for arm, label, runs in lines:
        cells = [("valid", False), ("test", False), ("test", True)]
        figures = [perplexity(runs, split, arm.predict, tuned=tuned) for split, tuned in cells]
        rows.append([label, seeds_shown([run.seed for run in runs]), *map(shown, figures)])
    begun = {line.arm.name for line in lines if line.runs}
    # Of an arm that was not begun the variants are not listed.
    missing = dict.fromkeys(line.label if line.arm.name in begun else line.arm.label for line in lines if not line.runs)
    header = ["what is changed", "seeds", "valid", "test", "test, tuned temperature"]
    return table_with_gaps(markdown.table(header, rows), list(missing), empty=not begun)


class _ArmLine(NamedTuple):
    arm: Arm
    label: str
    runs: list[RunSummary]


def _arm_lines(experiment: Experiment, records: Records, corpus: str, budget: Budget) -> list[_ArmLine]:
    """Return every variant of every arm with its runs."""
    found = records.runs(corpus, group_of(experiment, budget))
    in_table = records.runs(corpus, table_group(experiment.size, experiment.setting, budget))
    lines = []
    for arm, number, values in _variants(experiment):
        runs = found.get(point_name(arm, None, number), [])
        if arm.table:
            runs = [run for run in in_table.get(arm.row, []) if run.seed in experiment.seeds]
        lines.append(_ArmLine(arm, f"{arm.label}, {values}" if values else arm.label, runs))
    return lines


def _variants(experiment: Experiment) -> list[tuple[Arm, int, str]]:
    """Return every variant of every arm, by its number and its values."""
    return [(arm, number, settings_shown(values)) for arm in experiment.arms for number, values in enumerate(arm.variants)]


def _trials_table(experiment: Experiment, records: Records, corpus: str, budget: Budget) -> PagePart:
    """Return the best development perplexity of every trial."""
    found = records.runs(corpus, group_of(experiment, budget))
    rows = []
    for arm, number, values in _variants(experiment):
        if runs := found.get(point_name(arm, None, number), []):
            rows.append([arm.label, values, shown(over_seeds(runs, lambda run: run.best_valid))])
    return records_table(["model", "values", "best valid"], rows, texts=2)


def _times_table(experiment: Experiment, records: Records, corpus: str, budget: Budget) -> PagePart:
    """Return how long each run took, its evaluation included, and on what."""
    found = records.runs(corpus, group_of(experiment, budget))
    rows = []
    for arm in experiment.arms:
        for run in found.get(point_name(arm, None, 0), []):
            steps, minutes = run.record.get("steps"), float(run.record.get("seconds") or 0.0) / 60
            hardware = str((run.record.get("hardware") or {}).get("name"))
            each = float(run.record.get("ms_per_step") or 0.0)
            rows.append([arm.label, hardware, f"{steps:,}", shown(each), shown(minutes), shown(perplexity([run], "test"))])
    header = ["model", "hardware", "steps", "ms/step", "minutes in all", "test"]
    return records_table(header, rows, texts=2)


def _figure(experiment: Experiment, runs: Sequence[RunSummary], *, scaled: bool = False) -> Spread | None:
    predict = best_prediction(runs, scaled=scaled) if experiment.best_prediction else None
    if scaled:
        return scaled_perplexity(runs, experiment.split, predict)
    return perplexity(runs, experiment.split, predict, tuned=experiment.tuned)
