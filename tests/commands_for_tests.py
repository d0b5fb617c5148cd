"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from cyclopts import App

from varsmooth.cli import app

Outcome: TypeAlias = tuple[int, str, str]
"""A command's exit status, and what it wrote to standard output and to standard error."""
Run: TypeAlias = Callable[..., Outcome]


def _verbs(parent: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in parent:
        if not name.startswith("-"):
            yield (*path, name)
            yield from _verbs(parent[name], (*path, name))


VERBS = list(_verbs(app))
"""Every verb, and a verb's own verbs: ("train",), ("data",), ("data", "list") ..."""


def refused(result: Outcome, *words: str) -> None:
    """Assert that a command left with status 2 and one line on standard error that holds ``words``."""
    status, _, complaint = result
    assert status == 2, complaint
    assert complaint.startswith("varsmooth: ")
    assert complaint.count("\n") == 1
    assert "Traceback" not in complaint
    for word in words:
        assert word in complaint
