"""The learning rate over a run, as a factor of its height."""

from __future__ import annotations

import math
from dataclasses import dataclass


def cosine(step: int, steps: int, final: float) -> float:
    """Fall from 1 at step 0 to ``final`` after the last step, along half a cosine."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))


def warm_up(step: int, steps: int) -> float:
    """Rise evenly to 1, which the last of the first ``steps`` steps has; without any, be 1 from the start."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


@dataclass
class Plateau:
    """Multiplies the rate by ``decay`` after ``patience`` evaluations in a row without gain."""

    decay: float
    patience: int
    factor: float = 1.0
    waited: int = 0

    def observe(self, gained: bool) -> None:
        self.waited = 0 if gained else self.waited + 1
        if self.waited >= self.patience:
            self.factor *= self.decay
            self.waited = 0
