"""Timing that can be trusted: repeats of many calls each, the cases taking turns, so that drift falls on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from varsmooth.bench.findings import Quartiles
from varsmooth.train.captured import WARM_UP, Captured

FEWEST = 3
Call: TypeAlias = Callable[[], object]
Stopwatch: TypeAlias = Callable[[Call, int], float]
"""Calls something a number of times and returns the milliseconds of one call."""
Times: TypeAlias = dict[str, list[float]]
"""The milliseconds of one call, for each case and repeat."""


def stopwatch_for(device: torch.device) -> Stopwatch:
    """Return events of the GPU's own clock, or the wall clock where there is none."""
    return _time_on_gpu if device.type == "cuda" else _time_on_cpu


@dataclass(frozen=True)
class Turns:
    """Times ``calls`` calls of each case in turn, ``repeats`` times over: A B A B ...

    After ``seconds``, on a machine slower than expected, it leaves it at ``FEWEST`` repeats or what there are.
    """

    calls: int
    repeats: int
    seconds: float
    stopwatch: Stopwatch

    def time(self, cases: Mapping[str, Call], calls: int | None = None) -> Times:
        began = time.perf_counter()
        times: Times = {name: [] for name in cases}
        for repeat in range(self.repeats):
            if repeat >= FEWEST and time.perf_counter() - began > self.seconds:
                break
            for name, call in cases.items():
                times[name].append(self.stopwatch(call, calls or self.calls))
        return times


def ratio(times: Times, name: str, baseline: str) -> Quartiles:
    """Return how much longer ``name`` took than ``baseline``, each repeat against its neighbour in time."""
    return Quartiles.of([mine / other for mine, other in zip(times[name], times[baseline], strict=True)])


def captured(call: Call, device: torch.device) -> Call:
    """Return ``call`` as a CUDA graph that is ready to be replayed, or as it is where there is no GPU."""
    if device.type != "cuda":
        return call
    replay = Captured(call)
    for _ in range(WARM_UP + 1):
        replay()
    return replay


def _time_on_gpu(call: Call, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def _time_on_cpu(call: Call, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return 1000 * (time.perf_counter() - begin) / calls
