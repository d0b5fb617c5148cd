"""What a bench has found: figures with their spread, beside the floor and the figures to reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["ms", "x", "MB", "steps"]
Verdict = Literal["aim", "reach", "no"]


@dataclass(frozen=True)
class Quartiles:
    """The median of some repeats, and its quartiles."""

    median: float
    q1: float
    q3: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3, len(values))


@dataclass(frozen=True)
class Target:
    """A figure to reach: what it was at the start, what it has to be, and what it should be."""

    name: str
    reach: float
    aim: float | None = None
    start: float | None = None

    def verdict(self, found: float) -> Verdict:
        """Less is better; NaN is never good."""
        if self.aim is not None and found <= self.aim:
            return "aim"
        return "reach" if found <= self.reach else "no"


@dataclass(frozen=True)
class Measurement:
    """One figure: what was measured, of which model."""

    group: str
    quantity: str
    size: int
    words: int
    scheme: str
    spread: Quartiles
    unit: Unit
    floor: float | None = None
    """counted, in the same unit"""
    target: Target | None = None

    def as_json(self) -> dict[str, Any]:
        target, spread = self.target, self.spread
        return {
            "group": self.group,
            "quantity": self.quantity,
            "size": self.size,
            "vocabulary": self.words,
            "scheme": self.scheme,
            "median": spread.median,
            "q1": spread.q1,
            "q3": spread.q3,
            "unit": self.unit,
            "repeats": spread.repeats,
            "floor": self.floor,
            "start": target and target.start,
            "reach": target and target.reach,
            "aim": target and target.aim,
            "reached": target and target.verdict(spread.median),
        }


@dataclass(frozen=True)
class Check:
    """One check of the gate: how far two results are apart, relative to their norm, and how far they may be."""

    name: str
    subject: str
    """the scheme, and which loss or gradient"""
    found: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.found <= self.tolerance  # never so for NaN

    def as_json(self) -> dict[str, Any]:
        found = self.found if math.isfinite(self.found) else None
        return {
            "check": self.name,
            "subject": self.subject,
            "found": found,
            "tolerance": self.tolerance,
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Findings:
    """Everything one bench has found; no measurements where the gate is red."""

    environment: dict[str, Any]
    checks: list[Check]
    measurements: list[Measurement] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.environment,
            "gate": {"passed": not self.failures, "checks": [check.as_json() for check in self.checks]},
            "measurements": [found.as_json() for found in self.measurements],
            "seconds": self.seconds,
        }
