"""All that the records say, as named parts: tables, and pictures that are drawn where they are wanted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from varsmooth.reproduce import cost, markdown, tables
from varsmooth.reproduce.catalogue import BUDGETS, SETTINGS, SIZES, Budget, CorpusPlan, corpora
from varsmooth.reproduce.chosen import FILE, read_chosen
from varsmooth.reproduce.data_cost import data_cost_table, time_table
from varsmooth.reproduce.experiment_tables import (
    REFERENCE,
    arm_bands_table,
    choices_table,
    curves,
    experiment_table,
    gain_curves,
    reference_curve,
)
from varsmooth.reproduce.experiments import SHARE, Experiment, group_of, named_experiments
from varsmooth.reproduce.jobs import table_group
from varsmooth.reproduce.markdown import NOT_RUN, PagePart, paragraphs, records_table
from varsmooth.reproduce.pictures import line_chart
from varsmooth.reproduce.records import Records
from varsmooth.reproduce.running import SPENT
from varsmooth.reproduce.summary import summary_table

FIGURES = ("ptb/gamma", "wikitext-2/data-size", "cost")
"""The parts whose pictures the README shows."""


@dataclass(frozen=True)
class Page:
    """Parts by name, and pictures by the name of their file."""

    parts: dict[str, str] = field(default_factory=dict)
    pictures: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)
    """names of the parts that have no figure of ours"""

    def add(self, name: str, part: PagePart) -> None:
        self.parts[name] = part.text
        if part.empty:
            self.empty.add(name)

    def with_links(self, document: Path, images: Path) -> dict[str, str]:
        """Return the parts as a document in the folder ``document`` shows them; both are relative to one root."""
        linked = {}
        for name, text in self.parts.items():
            for picture in self.pictures:
                text = text.replace(f"({picture})", f"({Path(os.path.relpath(images / picture, document)).as_posix()})")
            linked[name] = text
        return linked


def build_page(results: Path) -> Page:
    """Build everything from the records below ``results``; no data and no GPU is needed."""
    records = Records(results)
    page = Page()
    page.add("headline", tables.headline_table(records))
    page.add("summary", summary_table(records))
    for plan in corpora().values():
        _add_tables(page, records, plan)
        page.add(f"{plan.name}/chosen", chosen_table(results, plan))
        page.add(f"{plan.name}/time", time_spent(results, plan))
        for experiment in named_experiments().values():
            for budget in BUDGETS if plan.name in experiment.corpora else ():
                _add_experiment(page, records, plan, experiment, budget)
    _add_cost(page, results)
    page.add("cost/time", time_table(records, cost.shown_cost(results)))
    page.parts["figures"] = paragraphs(*(_picture(page, name) for name in FIGURES))
    return page


def _picture(page: Page, part: str) -> str:
    """The first picture of a part, if it has one."""
    first = page.parts[part].partition("\n")[0]
    return first if first.startswith("![") else ""


def corpus_page(page: Page, plan: CorpusPlan) -> str:
    """Return what there is on one corpus as one document, its pictures beside it."""
    prefix = f"{plan.name}/"
    names = [*(name for name in page.parts if name.startswith(prefix)), "cost"]
    sections = [f"## {name.removeprefix(prefix)}\n\n{page.parts[name]}" for name in names if name not in page.empty]
    return paragraphs(f"# {plan.title}", *(sections or [NOT_RUN.text])) + "\n"


def chosen_table(results: Path, plan: CorpusPlan) -> PagePart:
    """Return what was chosen for each row, from how many trials, how many of them trained longest, and the best of these."""
    choices = read_chosen(results / plan.name / FILE).choices
    rows = []
    for (setting, size, row), choice in choices.items():
        values = markdown.settings_shown(choice.set)
        longest = max((trial.steps for trial in choice.trials), default=0)
        ended = [trial.valid_perplexity for trial in choice.trials if trial.steps == longest]
        counts = [str(len(choice.trials)), f"{longest:,}", str(len(ended))] if choice.trials else ["-", "-", "-"]
        best = markdown.shown(min((found for found in ended if found is not None), default=None))
        rows.append([row, str(size), setting, values or "as the recipe", *counts, best])
    header = ["row", "size", "setting", "values", "trials", "steps of the longest", "that long", "best valid of these"]
    return records_table(header, rows, texts=4) if rows else PagePart("Nothing chosen yet.", empty=True)


def time_spent(results: Path, plan: CorpusPlan) -> PagePart:
    """Return the minutes that fleets took, by hardware."""
    path = results / plan.name / SPENT
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    spent: dict[str, tuple[int, float]] = {}
    for line in lines:
        hardware = str(line["hardware"] or "unknown")
        runs, seconds = spent.get(hardware, (0, 0.0))
        spent[hardware] = runs + line["finished"], seconds + line["seconds"]
    rows = [[name, str(runs), f"{seconds / 60:,.0f}"] for name, (runs, seconds) in spent.items()]
    header = ["hardware", "runs that finished", "minutes in all, unfinished runs included"]
    return records_table(header, rows)


def _add_tables(page: Page, records: Records, plan: CorpusPlan) -> None:
    for setting in SETTINGS:
        for size in SIZES:
            for budget in BUDGETS:
                group = table_group(size, setting, budget)
                page.add(f"{plan.name}/{group}", tables.main_table(records, plan, group))
                page.add(f"{plan.name}/{group}/predictions", tables.predictions_table(records, plan, group))
                page.add(f"{plan.name}/{group}/speed", tables.speed_table(records, plan, group))
                page.add(f"{plan.name}/{group}/bands", tables.bands_table(records, plan, group))
                page.add(f"{plan.name}/{group}/calibration", tables.calibration_table(records, plan, group))
    page.add(f"{plan.name}/sampling", tables.sampling_table(records, plan))


def _add_experiment(page: Page, records: Records, plan: CorpusPlan, experiment: Experiment, budget: Budget) -> None:
    group = group_of(experiment, budget)
    part = experiment_table(experiment, records, plan.name, budget)
    found = curves(experiment, records, plan.name, budget) if experiment.vary else {}
    title, up = f"{experiment.title}, {plan.title}", f"{experiment.split} perplexity"
    if experiment.vary == SHARE:
        # Every share has a vocabulary of its own, so perplexities cannot be joined by a line, but what is gained at each can.
        first = experiment.arms[0].label
        found, title, up = gain_curves(found), f"What smoothing gains over {first}, {plan.title}", f"{up} below {first}"
    if any(len(points) > 1 for points in found.values()):
        picture = f"{plan.name}-{group}.png"
        log = experiment.vary in (SHARE, "train.steps")
        page.pictures[picture] = partial(
            line_chart,
            {**found, **reference_curve(experiment, records, plan.name, budget)},
            title=title,
            across=experiment.axis,
            up=up,
            logarithmic=log,
            floor=REFERENCE,
            zero=experiment.vary == SHARE,
        )
        part = replace(part, text=paragraphs(f"![{title}]({picture})", part.text))
    page.add(f"{plan.name}/{group}", part)
    if experiment.bands:
        page.add(f"{plan.name}/{group}/bands", arm_bands_table(experiment, records, plan.name, budget))
    if experiment.vary == SHARE and budget == "full":
        costs = cost.shown_cost(records.results)
        page.add(f"{plan.name}/{group}/cost", data_cost_table(experiment, records, plan.name, costs))
        page.add(f"{plan.name}/{group}/chosen", choices_table(experiment, records, plan.name))


def _add_cost(page: Page, results: Path) -> None:
    pictures = []
    for across, label in (("words", "words in the vocabulary, 512 units"), ("size", "units per layer, 10,000 words")):
        found = cost.cost_curves(results, across)
        if not any(len(points) > 1 for points in found.values()):
            continue
        picture, title = f"cost-{across}.png", f"Time of a training step over {label}"
        page.pictures[picture] = partial(
            line_chart,
            found,
            title=title,
            across=label.partition(",")[0],
            up="ms/step",
            logarithmic=True,
            logarithmic_up=True,
            floor=cost.FLOOR,
        )
        pictures.append(f"![{title}]({picture})")
    part = cost.cost_table(results)
    page.add("cost", replace(part, text=paragraphs(*pictures, part.text)))
