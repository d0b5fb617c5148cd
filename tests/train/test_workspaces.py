"""What surrounds the capture of a step, without a GPU; with one, tests/train/test_captured.py looks at what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from varsmooth.train.captured import WARM_UP, Captured


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    class Graph:
        def replay(self) -> None:
            found.append("replay")

    @contextmanager
    def graph(*_: object, **options: object) -> Iterator[None]:
        found.append("begin")
        try:
            yield
        finally:
            found.append("end")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: found.append("clear"), raising=False)
    return found


def test_a_capture_begins_and_ends_without_workspaces_of_others(events: list[str]) -> None:
    captured = Captured(lambda: events.append("step"))
    for _ in range(WARM_UP + 2):
        captured()
    assert events == ["step"] * WARM_UP + ["clear", "begin", "step", "end", "clear", "replay", "replay"]


def test_a_capture_that_fails_leaves_no_workspace_behind(events: list[str]) -> None:
    def step() -> None:
        if events.count("begin"):
            raise RuntimeError("cannot be captured")

    captured = Captured(step)
    for _ in range(WARM_UP):
        captured()
    with pytest.raises(RuntimeError, match="cannot be captured"):
        captured()
    assert events == ["clear", "begin", "end", "clear"]
    assert captured.graph is None
