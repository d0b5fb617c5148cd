"""Fleets: one process that trains many runs on one machine."""

from varsmooth.fleet.clock import TimeLimit
from varsmooth.fleet.driver import FleetOutcome, any_on_gpu, number_at_once, resume_fleet, start_fleet
from varsmooth.fleet.trials import FLEET_FILE, Trial, is_fleet, read_trials, recipe_trials, spending

__all__ = [
    "FLEET_FILE",
    "FleetOutcome",
    "TimeLimit",
    "Trial",
    "any_on_gpu",
    "is_fleet",
    "number_at_once",
    "read_trials",
    "recipe_trials",
    "resume_fleet",
    "spending",
    "start_fleet",
]
