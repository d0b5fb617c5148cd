"""What a run has cost: time and steps, over all the sessions that trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spent:
    """Time and steps of one session or of several; steps that were taken again after a kill count each time."""

    seconds: float = 0.0
    """of training and evaluating"""
    steps: int = 0
    training_seconds: float = 0.0
    """of the seconds, those in which the steps were taken"""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Spent:
        """What the sessions so far have spent; one that was killed before it could write its record is not known of."""
        seconds, trained = record.get("seconds") or 0.0, record.get("trained")
        if trained is not None:
            return cls(seconds, trained.get("steps") or 0, trained.get("seconds") or 0.0)
        # Records of earlier versions know the pace of their last session alone.
        pace = record.get("ms_per_step")
        steps = int(record.get("steps") or 0) if pace else 0
        return cls(seconds, steps, steps * (pace or 0.0) / 1000)

    def plus(self, seconds: float, steps: int, training_seconds: float) -> Spent:
        """Add a session; one that took no step has not trained, however long it looked whether it should."""
        trained = training_seconds if steps else 0.0
        return Spent(self.seconds + seconds, self.steps + steps, self.training_seconds + trained)

    def figures(self, tokens_per_step: int) -> dict[str, Any]:
        """What a record says of it."""
        steps, training = self.steps, self.training_seconds
        return {
            "seconds": self.seconds,
            "trained": {"steps": steps, "seconds": training},
            "tokens_per_second": steps * tokens_per_step / training if steps else 0.0,
            "ms_per_step": 1000 * training / steps if steps else None,
        }
