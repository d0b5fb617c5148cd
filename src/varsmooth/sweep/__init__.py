"""Sweeps: arms tuned within equal budgets, on one card, as processes, or by many machines on one database."""

from varsmooth.sweep.asking import Told, ask, ask_again, tell
from varsmooth.sweep.board import Board
from varsmooth.sweep.claims import Claims
from varsmooth.sweep.storage import FILE, GRACE, NOTE, StorageDownError, Store, check_url, file_url, shown
from varsmooth.sweep.study import Arm, Budget, Study
from varsmooth.sweep.study_file import load_study, parse_study, study_names
from varsmooth.sweep.summary import ArmSummary, StudySummary, summarize
from varsmooth.sweep.worker import SweepEnd, join, work, write_winners

__all__ = [
    "FILE",
    "GRACE",
    "NOTE",
    "Arm",
    "ArmSummary",
    "Board",
    "Budget",
    "Claims",
    "StorageDownError",
    "Store",
    "Study",
    "StudySummary",
    "SweepEnd",
    "Told",
    "ask",
    "ask_again",
    "check_url",
    "file_url",
    "join",
    "load_study",
    "parse_study",
    "shown",
    "study_names",
    "summarize",
    "tell",
    "work",
    "write_winners",
]
