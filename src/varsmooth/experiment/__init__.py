"""Runs: one from beginning to end, as something that can be advanced a step at a time."""

from varsmooth.experiment.failures import failure, record_unbuilt
from varsmooth.experiment.run import Steps, advance, continued_run, new_run, resume_run, start_run
from varsmooth.experiment.session import (
    Corpora,
    Reporting,
    RunControl,
    Session,
    corpus_of,
    from_anywhere,
    lane_for,
    set_threads,
)

__all__ = [
    "Corpora",
    "Reporting",
    "RunControl",
    "Session",
    "Steps",
    "advance",
    "continued_run",
    "corpus_of",
    "failure",
    "from_anywhere",
    "lane_for",
    "new_run",
    "record_unbuilt",
    "resume_run",
    "set_threads",
    "start_run",
]
