"""The learning rate over a run, as a factor of its height."""

from __future__ import annotations

import math


def cosine(step: int, steps: int, final: float) -> float:
    """Fall from 1 at step 0 to ``final`` after the last step, along half a cosine."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))


def warm_up(step: int, steps: int) -> float:
    """Rise evenly to 1, which the last of the first ``steps`` steps has; without any, be 1 from the start."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def after_plateau(factor: float, waited: int, gained: bool, decay: float, patience: int) -> tuple[float, int]:
    """Return the factor of the rate and how many evaluations in a row brought nothing, of which ``patience`` make it decay."""
    waited = 0 if gained else waited + 1
    return (factor * decay, 0) if waited >= patience else (factor, waited)
