"""How much is measured: everything on a GPU, a small version on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from varsmooth.bench.learning import Effort
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, SCHEMES, VANILLA, WORD, Workload
from varsmooth.errors import InputError, check_choice

EAGER, STEPS, FLEET, PARTS, MEMORY = GROUPS = ("eager", "schemes", "fleet", "parts", "memory")
LEARNING = "learning"
"""Measured only where it is asked for: to train takes longer than to time."""
PENN, WIKITEXT = 10_000, 33_278
"""Words of the Penn Treebank and of WikiText-2."""
CPU_WORDS = 4_000


@dataclass(frozen=True)
class Plan:
    """What one bench does."""

    device: torch.device
    groups: tuple[str, ...]
    workloads: tuple[Workload, ...]
    gate: tuple[Workload, ...]
    schemes: tuple[str, ...]
    calls: int
    """steps in one repeat"""
    repeats: int
    seconds: float = 20.0
    """after which a stage repeats no more"""
    warm_up: int = 10
    """steps before any is timed; those of a graph include its capture"""
    fleets: tuple[int, ...] = (1, 2, 4, 8)
    fleet_words: int = PENN
    gate_steps: int = 20
    memory_of: tuple[str, ...] = (VANILLA,)
    """schemes whose memory is measured, one after the other"""
    learning: Effort = field(default_factory=Effort)


def plan_for(device: torch.device, groups: tuple[str, ...] = (), sizes: tuple[int, ...] = (), *, quick: bool = False) -> Plan:
    """Return the plan for a device; ``groups`` and ``sizes`` choose from it, ``quick`` repeats less."""
    for group in groups:
        check_choice("--only", group, (*GROUPS, LEARNING))
    if any(size < 1 for size in sizes):
        raise InputError(f"--sizes takes sizes of at least 1, got {min(sizes)}")
    plan = _gpu_plan(device, groups, sizes) if device.type == "cuda" else _cpu_plan(device, groups, sizes)
    return replace(plan, repeats=3, calls=max(2, plan.calls // 2)) if quick else plan


def _gpu_plan(device: torch.device, groups: tuple[str, ...], sizes: tuple[int, ...]) -> Plan:
    workloads = tuple(Workload(size, words) for words in (PENN, WIKITEXT) for size in sizes or (512, 1024))
    # Kernels are chosen by size, so the gate has the sizes that are measured, and few words, which keeps it short.
    gate = tuple(replace(load, words=1_003, tokens=200_000) for load in workloads if load.words == PENN)
    return Plan(device, groups or GROUPS, workloads, gate, tuple(SCHEMES), calls=30, repeats=9)


def _cpu_plan(device: torch.device, groups: tuple[str, ...], sizes: tuple[int, ...]) -> Plan:
    for group in groups:
        if group != STEPS:
            raise InputError(f"--only {group} needs a GPU; on the CPU there is --only {STEPS}")
    workloads = tuple(Workload(size, CPU_WORDS, batch=16, precision="fp32", tokens=200_000) for size in sizes or (64, 128))
    gate = (Workload(16, 203, batch=4, window=5, precision="fp32", tokens=4_000),)
    schemes = (VANILLA, WORD, ELEMENT_BATCH, ELEMENT_SEQUENCE)
    return Plan(device, (STEPS,), workloads, gate, schemes, calls=3, repeats=9, warm_up=2)
