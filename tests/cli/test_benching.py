from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from commands_for_tests import Run, refused
from varsmooth.posterior import EmbeddingPosterior

SMALL = ("bench", "--quick", "--sizes", "4", "--device", "cpu")


@pytest.fixture
def red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups that do not find what the table's draw holds."""
    true = EmbeddingPosterior.lookup

    def wrong(self: EmbeddingPosterior, *args: Any, **kwargs: Any) -> Tensor:
        return true(self, *args, **kwargs) + 1

    monkeypatch.setattr(EmbeddingPosterior, "lookup", wrong)


def test_the_small_version_prints_its_figures_and_keeps_them(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    status, shown, progress = run(*SMALL, "--csv", path)
    assert status == 0, progress
    assert "checks passed" in shown
    assert "element KN sequence" in shown
    assert "Figures to reach" in shown
    assert "TFLOP/s" not in shown, "floors are those of a GPU"
    assert progress == "1/2 correctness\n2/2 schemes, 4, 4000\n"
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["quantity"] for row in found] == ["step"] * 4 + ["over vanilla"] * 3
    assert all(row["device"] and row["torch"] == torch.__version__ and float(row["median"]) > 0 for row in found)
    assert {row["scheme"]: row["reach"] for row in found[4:]} == {
        "word KN": "",
        "element KN batch": "1.25",
        "element KN sequence": "1.25",
    }


def test_json_holds_everything(run: Run) -> None:
    status, shown, _ = run(*SMALL, "--only", "schemes", "--json")
    assert status == 0
    found = json.loads(shown)
    assert found["gate"]["passed"]
    assert len(found["gate"]["checks"]) > 10
    assert {row["quantity"] for row in found["measurements"]} == {"step", "over vanilla"}
    assert found["hardware"]["device"] == "cpu"
    assert found["seconds"] > 0


def test_a_red_gate_prints_what_failed_and_no_speed(run: Run, red: None, tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    status, shown, complaint = run(*SMALL, "--csv", path)
    assert status == 1
    assert shown == ""
    assert "look-up is the table's draw: vanilla, 16: off by" in complaint
    assert "nothing was timed" in complaint
    assert "schemes" not in complaint
    assert not path.exists()


def test_a_red_gate_as_json(run: Run, red: None) -> None:
    status, shown, _ = run(*SMALL, "--json")
    assert status == 1
    found = json.loads(shown)
    assert found["gate"]["passed"] is False
    assert found["measurements"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "fleet"], ["--only fleet needs a GPU"]),
        (["--only", "schemes", "part"], ["--only", "'part'", "parts"]),
        (["--only", "schemes,part"], ["--only", "'part'", "parts"]),
        (["--sizes", "512,big"], ["--sizes", "'512,big'"]),
        (["--sizes", "0"], ["--sizes", "0"]),
        (["--sizes", ""], ["--sizes"]),
        (["--csv", "."], ["--csv", "is a folder"]),
    ],
)
def test_bad_flags_are_refused(run: Run, arguments: list[str], words: list[str]) -> None:
    refused(run("bench", "--device", "cpu", *arguments), *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(run: Run) -> None:
    refused(run("bench", "--device", "cuda"), "no GPU is available")
