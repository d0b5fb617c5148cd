"""The time that a fleet has: what it can still begin, and when everything must be saved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varsmooth.errors import InputError

WINDOW = 15.0
"""Seconds over which the pace is taken, at least: the compiling of the first run is soon forgotten."""
KNOWN = 20
"""Steps without which there is no pace."""
MARGIN = 1.1
"""What an expectation is multiplied by."""


@dataclass(frozen=True)
class TimeLimit:
    """``minutes`` after which every run saves its state and stops; no run is begun that is to end after ``within`` of them."""

    minutes: float
    within: float | None = None
    """None: as ``minutes``; more, where the same command will be given once more and goes on"""

    def __post_init__(self) -> None:
        for flag, value in (("--minutes", self.minutes), ("--within", self.within)):
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{flag} must be a number above 0, got {value}")

    def after(self, seconds: float) -> TimeLimit:
        """Return the limit that is left after ``seconds``; where it is used up, as good as nothing."""
        minutes, within = (max(it - seconds / 60, 1e-9) for it in (self.minutes, self.within or self.minutes))
        return TimeLimit(minutes, within)


class Clock:
    """Measures the pace of all runs together, and says from it what still fits; without a limit everything does."""

    def __init__(self, limit: TimeLimit | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._stop = None if limit is None else self._began + 60 * limit.minutes
        self._finish = None if limit is None else self._began + 60 * (limit.within or limit.minutes)
        self._steps = 0
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._evaluation = 0.0

    @property
    def up(self) -> bool:
        """Whether the runs must stop."""
        return self._stop is not None and self._now() >= self._stop

    def stepped(self, steps: int) -> None:
        """Take note of steps that runs have taken since this was last called."""
        self._steps += steps
        now = self._now()
        if now - self._marks[-1][0] >= WINDOW / 30:
            self._marks.append((now, self._steps))
            while len(self._marks) > 2 and self._is_enough(now, *self._marks[1]):
                self._marks.popleft()

    def _is_enough(self, now: float, then: float, before: int) -> bool:
        """Whether a pace could be taken from that mark on; where steps are slow, the window is longer."""
        return now - then >= WINDOW and self._steps - before >= KNOWN

    def evaluated(self, seconds: float) -> None:
        """Take note of how long a run took from its last step to its end."""
        self._evaluation = max(self._evaluation, seconds)

    def leaves(self, seconds: float) -> bool:
        """Whether something that takes so long would end in time."""
        return self._finish is None or self._now() + MARGIN * seconds <= self._finish

    def fits(self, steps: int, others: Sequence[int]) -> bool:
        """Whether a run of ``steps`` steps would end in time beside ``others``, each with its own number before it.

        They take turns, so that until its end each of them takes as many steps as it does, or ends before. As long as no pace
        is known, one run may try.
        """
        if self._finish is None:
            return True
        if self.up:
            return False
        pace = self._pace()
        if pace is None:
            return not others
        work = steps + sum(min(steps, other) for other in others)
        return self.leaves(pace * work + self._evaluation)

    def _pace(self) -> float | None:
        """Seconds for a step of any run."""
        then, before = self._marks[0]
        steps = self._steps - before
        return (self._now() - then) / steps if steps >= KNOWN else None
