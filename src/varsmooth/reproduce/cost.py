"""How cost grows with vocabulary and size: measured by bench, kept as its CSV, smoothing beside vanilla and the floor."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from varsmooth.bench import Findings, Plan, run_bench
from varsmooth.bench.learning import TIMES_THE_BEST
from varsmooth.bench.output import append_csv, failure_lines
from varsmooth.bench.plan import LEARNING, MEMORY, PENN, STEPS, WIKITEXT
from varsmooth.bench.suite import Observer
from varsmooth.bench.targets import PEAK_MEMORY, STEP, STEPS_TO_GOAL
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, VANILLA, WORD, Workload
from varsmooth.errors import InputError
from varsmooth.experiment.seeds import Spread
from varsmooth.fleet import TimeLimit
from varsmooth.fleet.clock import Clock
from varsmooth.reproduce import markdown
from varsmooth.reproduce.markdown import NOT_RUN, NOTHING, PagePart, paragraphs, shown
from varsmooth.train.environment import environment

FILE = "cost.csv"
PAPER = ((512, PENN), (512, WIKITEXT), (1024, PENN), (1024, WIKITEXT))
"""Units and words of what the paper trains."""
SHAPES = (*PAPER, (512, 100_000), (512, 267_735), (2048, PENN))
SCHEMES = (VANILLA, WORD, ELEMENT_BATCH, ELEMENT_SEQUENCE)
FLOOR = "counted floor"
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
        loads = [Workload(size, words) for size, words in SHAPES]
    groups = (STEPS, MEMORY, LEARNING) if device.type == "cuda" else (STEPS, LEARNING)
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
            memory_of=SCHEMES,
        )
        for load in loads
    ]


def missing_plans(results: Path, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that have no row of this machine yet."""
    known = {(cost.size, cost.words, cost.device) for cost in read_cost(results)}
    devices = {plan.device: environment(plan.device)["hardware"]["name"] for plan in plans}
    return [plan for plan in plans for load in plan.workloads if (load.size, load.words, devices[plan.device]) not in known]


def plan_name(plan: Plan) -> str:
    """Say what a plan measures."""
    (load,) = plan.workloads
    return f"cost of {load.size:,} units with {load.words:,} words"


def measure_cost(results: Path, plans: Sequence[Plan], observe: Observer, limit: TimeLimit | None = None) -> list[Findings]:
    """Measure what has no row yet, adding to ``cost.csv`` after each plan, so that nothing is measured twice.

    No plan is begun that would not end within the ``limit``, by how long the one before it took: of half a plan nothing is
    kept. One that fails is passed over, and told when the others have been measured.
    """
    path, clock = results / FILE, Clock(limit and TimeLimit(limit.minutes))
    found: list[Findings] = []
    failed: list[InputError] = []
    checked: set[int] = set()
    pace = 0.0
    for plan in missing_plans(results, plans):
        (load,) = plan.workloads
        if not clock.leaves(pace * _work(load)):
            break
        # Kernels are chosen by size: what was found right for one vocabulary need not be asked again for the next.
        try:
            findings = run_bench(replace(plan, gate=()) if load.size in checked else plan, observe)
        except InputError as error:
            failed.append(InputError(f"{plan_name(plan)}: {error}"))
            continue
        if findings.failures:
            what = failure_lines(findings.failures)[0]
            failed.append(InputError(f"{plan_name(plan)}: nothing is timed while results are wrong: {what}"))
            continue
        checked.add(load.size)
        append_csv(path, findings)
        found.append(findings)
        pace = findings.seconds / _work(load)
    if failed:
        raise failed[0]
    return found


def _work(load: Workload) -> float:
    """What a shape has to compute for a word, in multiplications: the output layer's, and those of two recurrent layers."""
    return load.size * load.words + 16 * load.size**2


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


def cost_table(results: Path) -> PagePart:
    """Return ms/step of each scheme and the floor, then the memory and the time to a perplexity, by size and vocabulary."""
    costs = shown_cost(results)
    medians = {cost[:4]: cost.median for cost in costs}
    floors = {(cost.size, cost.words): cost.floor for cost in costs if cost.quantity == STEP}
    times, memory, learning = [], [], []
    for size, words in sorted(floors):
        shape = [f"{size:,}", f"{words:,}"]
        steps = [shown(medians.get((STEP, size, words, scheme))) for scheme in SCHEMES]
        times.append([*shape, *steps, shown(floors[size, words])])
        peaks = [medians.get((PEAK_MEMORY, size, words, scheme)) for scheme in SCHEMES]
        memory += [[*shape, *(shown(peak, 0) for peak in peaks)]] if any(peaks) else []
        needed = [_to_goal(medians, (size, words), scheme) for scheme in SCHEMES]
        learning += [[*shape, *needed]] if set(needed) != {NOTHING} else []
    if not times:
        return NOT_RUN
    text = paragraphs(
        f"A training step on one {costs[0].device}, ms:",
        markdown.table(["units", "words", *SCHEMES, FLOOR], times, texts=0),
        "Peak memory beyond weights, gradients and second moments, MB:" if memory else "",
        markdown.table(["units", "words", *SCHEMES], memory, texts=0) if memory else "",
        f"Steps, and their time, to {TIMES_THE_BEST:g} times the best possible perplexity of made-up text:" if learning else "",
        markdown.table(["units", "words", *SCHEMES], learning, texts=0) if learning else "",
    )
    return PagePart(text)


def _to_goal(medians: Mapping[tuple[str, int, int, str], float], shape: tuple[int, int], scheme: str) -> str:
    """Return the steps that a scheme needed, and how long it takes them."""
    steps, each = (medians.get((quantity, *shape, scheme)) for quantity in (STEPS_TO_GOAL, STEP))
    return NOTHING if steps is None or each is None else f"{steps:,.0f} ({shown(steps * each / 1000, 1)} s)"


def cost_curves(results: Path, across: str) -> Curves:
    """Return ms/step over the vocabulary at 512 units (``words``), or over the size with 10,000 words (``size``)."""
    curves: Curves = {}
    floors: list[tuple[float, Spread]] = []
    for cost in sorted(shown_cost(results), key=lambda cost: (cost.words, cost.size)):
        if cost.quantity != STEP or (cost.size if across == "words" else cost.words) != (512 if across == "words" else PENN):
            continue
        place = float(cost.words if across == "words" else cost.size)
        curves.setdefault(cost.scheme, []).append((place, Spread(cost.median, None, 1)))
        if cost.scheme == VANILLA and cost.floor is not None:
            floors.append((place, Spread(cost.floor, None, 1)))
    return {**curves, FLOOR: floors} if floors else curves
