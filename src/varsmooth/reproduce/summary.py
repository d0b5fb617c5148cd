"""What smoothing gives in one table: its best row beside the plain model, by text, size and setting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from varsmooth.report.runs import RunSummary
from varsmooth.reproduce.catalogue import SETTINGS, SIZES, CorpusPlan, Setting, corpora
from varsmooth.reproduce.experiments import Experiment, named_experiments
from varsmooth.reproduce.jobs import table_group
from varsmooth.reproduce.markdown import PagePart, records_table, shown
from varsmooth.reproduce.records import Records, best_prediction, perplexity
from varsmooth.reproduce.tables import BASELINE, best_smoothed, gain_shown
from varsmooth.reproduce.trials import best_runs

SHARES = "data-size"
TOLD: dict[Setting, str] = {"paper": "the paper's setting", "tuned": "tuned"}


def summary_table(records: Records) -> PagePart:
    """Return a line for every table, then for every share of the text, that has both; test, at tuned temperatures."""
    lines = [_of_table(records, *each) for each in itertools.product(corpora().values(), SIZES, SETTINGS)]
    shares = named_experiments()[SHARES]
    lines += [_of_share(shares, records, *each) for each in itertools.product(shares.corpora, range(len(shares.values)))]
    header = ["text", "best smoothing row", "plain model", "that row", "difference"]
    return records_table(header, [line for line in lines if line], texts=2)


def _of_table(records: Records, plan: CorpusPlan, size: int, setting: Setting) -> list[str]:
    """Each row by its own prediction."""
    runs = records.runs(plan.name, table_group(size, setting, "full"))
    rows = {row.label: runs[row.name] for row in plan.rows if row.name in runs}
    return _line(f"{plan.title}, {size} units, {TOLD[setting]}", runs.get(BASELINE, []), rows)


def _of_share(experiment: Experiment, records: Records, corpus: str, place: int) -> list[str]:
    """Each arm by the prediction that is best on valid; where the table has the runs, its line says it."""
    value = experiment.values[place]
    if value == experiment.in_table:
        return []
    runs = {arm.label: best_runs(experiment, records, corpus, arm, place) for arm in experiment.arms}
    where = f"{value:.0%} of {corpora()[corpus].title}, {experiment.size} units, tuned"
    return _line(where, runs[experiment.arms[0].label], runs, {label: best_prediction(it) for label, it in runs.items()})


def _line(
    where: str,
    plain: Sequence[RunSummary],
    rows: Mapping[str, Sequence[RunSummary]],
    predicts: Mapping[str, str | None] | None = None,
) -> list[str]:
    """Compare with the smoothing row that is best on valid; return nothing where it or the plain model was not run."""
    best = best_smoothed(rows, predicts)
    if not plain or best is None:
        return []
    predict = (predicts or {}).get(best)
    figures = perplexity(plain, "test", tuned=True), perplexity(rows[best], "test", predict, tuned=True)
    return [where, best, *map(shown, figures), gain_shown(plain, rows[best], predict, tuned=True)]
