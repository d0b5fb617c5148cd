"""A fixture that writes run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import MakeRun, record
from varsmooth.report import RunSummary, load_run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        recipe: str = "vanilla",
        seed: int = 1,
        *,
        curve: list[tuple[int, float]] | None = None,
        folder: str = "",
        **changes: Any,
    ) -> RunSummary:
        path = tmp_path / (folder or f"run-{len(list(tmp_path.iterdir()))}")
        path.mkdir()
        (path / "record.json").write_text(json.dumps(record(recipe, seed, **changes)))
        if curve is not None:
            lines = [json.dumps({"step": step, "valid_perplexity": value}) + "\n" for step, value in curve]
            (path / "metrics.jsonl").write_text("".join(lines))
        return load_run(path)

    return make
