"""How cost grows with vocabulary and size: measured by bench, kept as its CSV, smoothing beside vanilla and the floor."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from varsmooth.bench import Findings, Plan, run_bench
from varsmooth.bench.output import append_csv, failure_lines
from varsmooth.bench.plan import MEMORY, PENN, STEPS, WIKITEXT
from varsmooth.bench.suite import Observer
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, VANILLA, WORD, Workload
from varsmooth.errors import InputError
from varsmooth.report.tables import Spread
from varsmooth.reproduce import markdown
from varsmooth.reproduce.markdown import not_run, paragraphs, shown
from varsmooth.train.environment import environment

FILE = "cost.csv"
VOCABULARIES = (PENN, WIKITEXT, 100_000, 267_735)
SIZES = (512, 1024, 2048)
SCHEMES = (VANILLA, WORD, ELEMENT_BATCH, ELEMENT_SEQUENCE)
FLOOR = "counted floor"
STEP, PEAK = "step", "peak memory"
Curves = dict[str, list[tuple[float, Spread]]]


class Cost(NamedTuple):
    quantity: str
    size: int
    words: int
    scheme: str
    median: float
    floor: float | None
    device: str


def cost_plans(device: torch.device, loads: Sequence[Workload] = ()) -> list[Plan]:
    """Return a plan for each vocabulary at 512 units and each size with 10,000 words: memory is measured for one at a time."""
    if not loads:
        shapes = dict.fromkeys([*((512, words) for words in VOCABULARIES), *((size, PENN) for size in SIZES)])
        loads = [Workload(size, words) for size, words in shapes]
    groups = (STEPS, MEMORY) if device.type == "cuda" else (STEPS,)
    return [
        Plan(
            device,
            groups,
            (load,),
            (replace(load, words=1_003, tokens=200_000),),
            SCHEMES,
            30,
            9,
            fleet_words=load.words,
            memory_of=(VANILLA, ELEMENT_BATCH),
        )
        for load in loads
    ]


def measure_cost(results: Path, plans: Sequence[Plan], observe: Observer) -> list[Findings]:
    """Measure what has no row yet, adding to ``cost.csv`` after each plan, so that nothing is measured twice."""
    path = results / FILE
    known = {(cost.size, cost.words, cost.device) for cost in read_cost(results)}
    found: list[Findings] = []
    checked: set[int] = set()
    for plan in plans:
        (load,) = plan.workloads
        if (load.size, load.words, environment(plan.device)["hardware"]["name"]) in known:
            continue
        # Kernels are chosen by size: what was found right for one vocabulary need not be asked again for the next.
        findings = run_bench(replace(plan, gate=()) if load.size in checked else plan, observe)
        checked.add(load.size)
        if findings.failures:
            raise InputError(f"nothing is timed while results are wrong: {failure_lines(findings.failures)[0]}")
        append_csv(path, findings)
        found.append(findings)
    return found


def shown_cost(results: Path) -> list[Cost]:
    """Return what was measured on the device that was measured last, of each kind the newest."""
    costs = read_cost(results)
    return list({cost[:4]: cost for cost in costs if cost.device == costs[-1].device}.values())


def read_cost(results: Path) -> list[Cost]:
    """Read the measurements; the newest of a kind comes last."""
    path = results / FILE
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            return [
                Cost(
                    row["quantity"],
                    int(row["size"]),
                    int(row["vocabulary"]),
                    row["scheme"],
                    float(row["median"]),
                    float(row["floor"]) if row["floor"] else None,
                    row["device"],
                )
                for row in csv.DictReader(file)
            ]
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path}: not the rows of a bench; remove it and measure again") from None


def cost_table(results: Path) -> str:
    """Return ms/step of each scheme, the floor and the memory, by size and vocabulary."""
    costs = shown_cost(results)
    medians = {cost[:4]: cost.median for cost in costs}
    floors = {(cost.size, cost.words): cost.floor for cost in costs if cost.quantity == STEP}
    header = [
        "units",
        "words",
        *(f"{scheme}, ms/step" for scheme in SCHEMES),
        f"{FLOOR}, ms/step",
        *(f"{scheme}, MB beyond the weights" for scheme in (VANILLA, ELEMENT_BATCH)),
    ]
    rows = []
    for size, words in sorted(floors):
        steps = [shown(medians.get((STEP, size, words, scheme))) for scheme in SCHEMES]
        memory = [shown(medians.get((PEAK, size, words, scheme)), 0) for scheme in (VANILLA, ELEMENT_BATCH)]
        rows.append([str(size), f"{words:,}", *steps, shown(floors[size, words]), *memory])
    if not rows:
        return not_run(["cost"], 1)
    return paragraphs(markdown.table(header, rows, texts=0), f"Measured on one {costs[0].device}.")


def cost_curves(results: Path, across: str) -> Curves:
    """Return ms/step over the vocabulary at 512 units (``words``), or over the size with 10,000 words (``size``)."""
    curves: Curves = {}
    for cost in sorted(shown_cost(results), key=lambda cost: (cost.words, cost.size)):
        if cost.quantity != STEP or (cost.size if across == "words" else cost.words) != (512 if across == "words" else PENN):
            continue
        place = float(cost.words if across == "words" else cost.size)
        curves.setdefault(cost.scheme, []).append((place, Spread(cost.median, None, 1)))
        if cost.scheme == VANILLA and cost.floor is not None:
            curves.setdefault(FLOOR, []).append((place, Spread(cost.floor, None, 1)))
    return curves
