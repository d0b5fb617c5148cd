"""One bench from beginning to end: the gate, then every group of measurements, each on a card that holds nothing else."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple, TypeAlias

import torch

from varsmooth.bench import floor
from varsmooth.bench.findings import Findings, Measurement, Quartiles, Unit
from varsmooth.bench.fleet import Fleet
from varsmooth.bench.gate import run_gate
from varsmooth.bench.learning import steps_to_goal
from varsmooth.bench.parts import parts_of
from varsmooth.bench.plan import EAGER, FLEET, LEARNING, MEMORY, PARTS, STEPS, Plan
from varsmooth.bench.targets import PEAK_MEMORY, RATIO, STEP, STEPS_TO_GOAL, target_for, vocabulary_name
from varsmooth.bench.timing import Stopwatch, Turns, captured, ratio, stopwatch_for
from varsmooth.bench.workload import VANILLA, Workload
from varsmooth.config import Engine
from varsmooth.errors import InputError
from varsmooth.ops.backend import has_triton
from varsmooth.train.environment import environment
from varsmooth.train.trainer import Trainer

MEGABYTE = 1_000_000
Observer: TypeAlias = Callable[[str, int, int], None]
"""Told what is done next, its number from 0, and how many things there are to do."""


class Stage(NamedTuple):
    name: str
    run: Callable[[], list[Measurement]]


def run_bench(plan: Plan, observe: Observer, stopwatch: Stopwatch | None = None) -> Findings:
    """Run the gate and, where it is green, measure all that the plan asks for."""
    if plan.device.type == "cuda" and not has_triton():
        raise InputError("bench measures kernels that need Triton: pip install 'varsmooth[kernels]'")
    began = time.perf_counter()
    turns = Turns(plan.calls, plan.repeats, plan.seconds, stopwatch or stopwatch_for(plan.device))
    stages = list(_stages(plan, turns))
    observe("correctness", 0, len(stages) + 1)
    with _alone_on_the_card("correctness"):
        findings = Findings(_environment(plan.device), run_gate(plan))
    if not findings.failures:
        for number, stage in enumerate(stages, start=1):
            observe(stage.name, number, len(stages) + 1)
            with _alone_on_the_card(stage.name):
                findings.measurements.extend(stage.run())
    return Findings(findings.environment, findings.checks, findings.measurements, time.perf_counter() - began)


def _stages(plan: Plan, turns: Turns) -> Iterator[Stage]:
    groups: dict[str, Callable[[Plan, Turns, Workload], list[Measurement]]] = {
        EAGER: _eager,
        STEPS: _schemes,
        FLEET: _fleets,
        PARTS: _parts,
        MEMORY: _memory,
        LEARNING: _learning,
    }
    for group in plan.groups:
        for load in plan.workloads:
            if group not in (FLEET, MEMORY) or load.words == plan.fleet_words:
                yield Stage(f"{group}, {load.size}, {vocabulary_name(load.words)}", partial(groups[group], plan, turns, load))


def _eager(plan: Plan, turns: Turns, load: Workload) -> list[Measurement]:
    """The plain loop of torch's own operations."""
    trainer = _warm(plan, load, VANILLA, "eager")
    times = turns.time({VANILLA: trainer.step}, max(1, plan.calls // 3))
    trainer.check_finite()
    return [_measurement(plan, load, EAGER, "eager step", VANILLA, Quartiles.of(times[VANILLA]))]


def _schemes(plan: Plan, turns: Turns, load: Workload) -> list[Measurement]:
    """Each scheme as training runs it by itself: its step, and how much longer than vanilla that takes."""
    trainers = {scheme: _warm(plan, load, scheme, "auto") for scheme in plan.schemes}
    times = turns.time({name: trainer.step for name, trainer in trainers.items()})
    for trainer in trainers.values():
        trainer.check_finite()
    counted = floor.step(load).milliseconds if plan.device.type == "cuda" else None
    found = [_measurement(plan, load, STEPS, STEP, name, Quartiles.of(times[name]), floor_ms=counted) for name in trainers]
    others = [name for name in trainers if name != VANILLA]
    return found + [_measurement(plan, load, STEPS, RATIO, name, ratio(times, name, VANILLA), "x") for name in others]


def _fleets(plan: Plan, turns: Turns, load: Workload) -> list[Measurement]:
    """The time that a step takes a model when several train on one card."""
    seeds = range(1, max(plan.fleets) + 1)
    trainers = [load.trainer(load.config(VANILLA, "auto", seed), plan.device) for seed in (0, *seeds)]
    alone, fleet = Fleet(trainers[:1], plan.device), Fleet(trainers[1:], plan.device)
    for each in (alone, fleet):
        each.run(plan.warm_up)
    cases = {f"fleet of {size}": partial((fleet if size > 1 else alone).run, plan.calls, size) for size in plan.fleets}
    times = turns.time(cases, 1)
    for trainer in trainers:
        trainer.check_finite()
    return [
        _measurement(plan, load, FLEET, name, VANILLA, Quartiles.of([t / (plan.calls * size) for t in times[name]]))
        for name, size in zip(cases, plan.fleets, strict=True)
    ]


def _parts(plan: Plan, turns: Turns, load: Workload) -> list[Measurement]:
    parts = list(parts_of(load, plan.device))
    cases = {f"{part.name}, {part.scheme}": captured(part.call, plan.device) for part in parts}
    times = turns.time(cases)
    return [
        _measurement(plan, load, PARTS, part.name, part.scheme, Quartiles.of(found), floor_ms=part.floor.milliseconds)
        for part, found in zip(parts, times.values(), strict=True)
    ]


def _memory(plan: Plan, _: Turns, load: Workload) -> list[Measurement]:
    """The most memory that a run holds at once, less its weights, gradients and second moments (fp32 each)."""
    found = []
    for scheme in plan.memory_of:
        with _alone_on_the_card(f"memory, {scheme}"):
            spread = Quartiles.of([_megabytes_beyond(plan, load, scheme)])
        found.append(_measurement(plan, load, MEMORY, PEAK_MEMORY, scheme, spread, "MB"))
    return found


def _megabytes_beyond(plan: Plan, load: Workload, scheme: str) -> float:
    # The text belongs to the run; cuBLAS keeps the workspaces of the stages before, which a run makes for itself.
    torch._C._cuda_clearCublasWorkspaces()
    text = load.text(plan.device).ids
    before = torch.cuda.memory_allocated(plan.device) - text.nbytes
    torch.cuda.reset_peak_memory_stats(plan.device)
    trainer = _warm(plan, load, scheme, "auto")
    torch.cuda.synchronize(plan.device)
    counted = 3 * floor.SINGLE * sum(parameter.numel() for parameter in trainer.network.parameters())
    return (torch.cuda.max_memory_allocated(plan.device) - before - counted) / MEGABYTE


def _learning(plan: Plan, _: Turns, load: Workload) -> list[Measurement]:
    """The steps of each scheme to a fixed perplexity; a scheme that does not come there has no figure."""
    found = []
    for scheme in plan.schemes:
        with _alone_on_the_card(f"learning, {scheme}"):
            steps = steps_to_goal(load, scheme, plan.device, plan.learning)
        if steps is not None:
            found.append(_measurement(plan, load, LEARNING, STEPS_TO_GOAL, scheme, Quartiles.of([float(steps)]), "steps"))
    return found


def _warm(plan: Plan, load: Workload, scheme: str, engine: Engine) -> Trainer:
    """Return a trainer that has taken its first steps: kernels are compiled, the graph is captured."""
    trainer = load.trainer(load.config(scheme, engine), plan.device)
    for _ in range(plan.warm_up):
        trainer.step()
    return trainer


def _measurement(
    plan: Plan,
    load: Workload,
    group: str,
    quantity: str,
    scheme: str,
    spread: Quartiles,
    unit: Unit = "ms",
    floor_ms: float | None = None,
) -> Measurement:
    target = target_for(quantity, load.size, load.words, scheme, plan.device.type)
    return Measurement(group, quantity, load.size, load.words, scheme, spread, unit, floor_ms, target)


@contextmanager
def _alone_on_the_card(name: str) -> Iterator[None]:
    """Give back what the last stage held, and say plainly where memory runs out."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise InputError(f"out of GPU memory while measuring {name}; use smaller --sizes, or --only what fits") from None


def _environment(device: torch.device) -> dict[str, Any]:
    found = environment(device)
    return {**found, "versions": {**found["versions"], "triton": _version("triton")}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
