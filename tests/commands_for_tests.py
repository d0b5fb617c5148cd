"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Outcome: TypeAlias = tuple[int, str, str]
"""A command's exit status, and what it wrote to standard output and to standard error."""
Run: TypeAlias = Callable[..., Outcome]


def refused(result: Outcome, *words: str) -> None:
    """Assert that a command left with status 2 and one line on standard error that holds ``words``."""
    status, _, complaint = result
    assert status == 2, complaint
    assert complaint.startswith("varsmooth: ")
    assert complaint.count("\n") == 1
    assert "Traceback" not in complaint
    for word in words:
        assert word in complaint
