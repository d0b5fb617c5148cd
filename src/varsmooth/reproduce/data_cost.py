"""How long training takes to a fixed development perplexity: by text and size, and by the share of the training text."""

from __future__ import annotations

from collections.abc import Sequence

from varsmooth.report.runs import RunSummary
from varsmooth.reproduce.catalogue import SIZES, corpora, paper_cell
from varsmooth.reproduce.cost import Cost
from varsmooth.reproduce.experiments import Experiment
from varsmooth.reproduce.jobs import table_group
from varsmooth.reproduce.markdown import PagePart, records_table
from varsmooth.reproduce.pace import steps_shown
from varsmooth.reproduce.records import Records
from varsmooth.reproduce.trials import best_runs

BASELINE = "vanilla"
ROWS = (BASELINE, "smoothing-kneser-ney", "element-kneser-ney")


def time_table(records: Records, costs: Sequence[Cost]) -> PagePart:
    """Return steps and time to what the paper's smaller tied vanilla ends with, by text and size."""
    rows: list[list[str]] = []
    labels: dict[str, str] = {}
    for plan in corpora().values():
        labels |= {row.name: row.label for row in plan.rows if row.name in ROWS}
        goal = paper_cell(plan.name, min(SIZES), BASELINE).valid or 0.0
        sizes = {f"{size:,}": records.runs(plan.name, table_group(size, "paper", "full")) for size in SIZES}
        for size, runs in sizes.items():
            if BASELINE in runs:
                shape = [plan.title, size, _words(runs[BASELINE]), f"{goal}"]
                rows.append([*shape, *(steps_shown(runs.get(row, []), goal, costs) for row in ROWS)])
    header = ["text", "units", "words", "valid perplexity", *(labels[row] for row in ROWS)]
    return records_table(header, rows)


def data_cost_table(experiment: Experiment, records: Records, corpus: str, costs: Sequence[Cost] = ()) -> PagePart:
    """Return words, tokens, and steps and time to the first arm's best development perplexity, by share."""
    first, header = experiment.arms[0], ["share", "words in the vocabulary", "tokens"]
    header += [f"{arm.label}: steps to the best of {first.label}" for arm in experiment.arms]
    rows = []
    for place, value in enumerate(experiment.values):
        members = [best_runs(experiment, records, corpus, arm, place) for arm in experiment.arms]
        if not members[0]:
            continue
        goal = max(run.best_valid or float("inf") for run in members[0])  # which all of its seeds reach
        tokens = ((members[0][0].record.get("data") or {}).get("tokens") or {}).get("train", 0)
        rows.append(
            [f"{value:g}", _words(members[0]), f"{tokens:,}", *(steps_shown(runs, goal, costs) for runs in members)],
        )
    return records_table(header, rows, texts=0)


def _words(runs: Sequence[RunSummary]) -> str:
    return f"{(runs[0].record.get('data') or {}).get('vocab_size', 0):,}"
