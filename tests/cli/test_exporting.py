"""varsmooth export, as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands_for_tests import Run, refused
from hf_for_tests import some_run

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return some_run(tmp_path_factory.mktemp("runs"))


def test_it_says_what_it_wrote(run: Run, trained: Path, tmp_path: Path) -> None:
    status, shown, complaint = run("export", trained, "--to", "hf", tmp_path / "model")
    assert (status, complaint) == (0, "")
    how, first = shown.splitlines()[0].split("; ")
    assert how == "predicts by mean at temperature 1"
    assert shown.splitlines()[1] == f"folder: {tmp_path / 'model'}"
    refused(run("export", trained, "--to", "hf", tmp_path / "model"), "--force", str(tmp_path / "model"))
    status, shown, _ = run("export", trained, tmp_path / "model", "--to=hf", "--predict", "mode", "--force", "--json")
    found = json.loads(shown)
    assert status == 0
    assert found["predict"] == "mode"
    assert found["folder"] == str(tmp_path / "model")
    assert "tokenizer.json" in found["files"]
    trained_parameters = json.loads((trained / "record.json").read_text())["parameters"]
    assert found["trained_parameters"] == trained_parameters
    assert first == f"{found['parameters']:,} parameters (the run trained {trained_parameters:,}: README.md says why)"


def test_what_it_refuses(run: Run, trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    refused(run("export", tmp_path, "--to", "hf", target), "not a run folder")
    refused(run("export", trained, "--to", "onnx", target), "--to", "hf")
    refused(run("export", trained, target), "--to")
    refused(run("export", trained, "--to", "hf"), "--folder")
    refused(run("export", trained, "--to", "hf", trained), "run folder")
    refused(run("export", trained, "--to", "hf", target, "--temperature", "warm"), "--temperature", "auto", "warm")
    refused(run("export", trained, "--to", "hf", target, "--temperature", "nan"), "--temperature", "nan")
    refused(run("export", trained, "--to", "hf", target, "--temperature", "1e-40"), "--temperature", "at least 1e-06")
    refused(run("export", trained, "--to", "hf", target, "--predict", "median"), "--predict")
    assert not list(tmp_path.iterdir())
