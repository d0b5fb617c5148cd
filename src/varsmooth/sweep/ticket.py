"""A slot that a process has claimed, and what varsmooth writes beside Optuna's own fields of a trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from varsmooth.config import Config
from varsmooth.sweep.claims import Claim

if TYPE_CHECKING:
    import optuna

    from varsmooth.sweep.stage import Stage

SLOT, REASON, SUPERSEDED, PLACE, ASKED, STEPS, SECONDS, RUN = (
    "slot",
    "reason",
    "superseded",
    "place",
    "asked",
    "steps",
    "seconds",
    "run",
)
"""What varsmooth writes beside Optuna's own fields of a trial."""


@dataclass
class Ticket:
    """A slot that this process has claimed."""

    stage: Stage
    slot: int
    trial: optuna.Trial
    config: Config
    claim: Claim | None
    seconds: float = 0.0
    reported: set[int] = field(default_factory=set)
    lost: bool = False
    """whether another worker was given the slot because this one was silent for too long"""

    @property
    def name(self) -> str:
        return self.stage.run_name(self.slot)

    @property
    def identity(self) -> int:
        return int(self.trial._trial_id)
