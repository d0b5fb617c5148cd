"""The examples run, at tiny size."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from networks_for_tests import TINY
from varsmooth import LanguageModel, open_corpus
from varsmooth.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_there_is_a_test_for_each():
    tested = set(re.findall(r'example\(monkeypatch, "(\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("examples/own_loop.py", ["--data", "./nowhere"]),
        ("examples/hf_trainer.py", ["--data", "./nowhere"]),
        ("examples/run_to_text.py", ["./nowhere", "the", "--to", "model"]),
        ("benchmarks/decoder.py", ["train", "--data", "./nowhere", "--out", "records"]),
    ],
)
def test_what_is_not_there_gets_one_line(monkeypatch, capsys, tmp_path, script, arguments):
    if script in ("examples/hf_trainer.py", "examples/run_to_text.py"):
        pytest.importorskip("varsmooth.hf")
    path = EXAMPLES.parent / script
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [path.name, *arguments])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(path), run_name="__main__")
    told = capsys.readouterr().err
    assert left.value.code == 2
    assert told.startswith(f"{path.stem}: ")
    assert "nowhere" in told
    assert told.count("\n") == 1


def test_own_loop(monkeypatch, capsys):
    example(monkeypatch, "own_loop.py", "--data", "synthetic", "--steps", "50", "--width", "16")
    steps = re.findall(r"step \d+: loss [\d.]+, perplexity of the mean ([\d.]+)", capsys.readouterr().out)
    # The synthetic source has 200 words: better than knowing nothing.
    assert float(steps[-1]) < 150


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.slow
def test_trainer(monkeypatch, capsys, tmp_path):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    example(monkeypatch, "hf_trainer.py", "--data", "synthetic", "--steps", "20", "--out", str(tmp_path))
    (found,) = re.findall(r"perplexity of the mean: ([\d.]+)", capsys.readouterr().out)
    assert float(found) < 150
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    valid = torch.as_tensor(open_corpus("synthetic").valid).long()[:8000]
    rows = valid[: len(valid) // 64 * 64].view(-1, 64)
    with torch.no_grad():
        logits = saved(rows).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).exp().item()
    assert float(found) == pytest.approx(expected, abs=0.06)


def test_run_to_text(monkeypatch, capsys, tmp_path):
    pytest.importorskip("varsmooth.hf").quiet()
    run = str(tmp_path / "run")
    settings = [part for change in TINY if not change.startswith("data.name") for part in ("--set", change)]
    app(["train", "--data", "synthetic", "--recipe", "vanilla", "--out", run, *settings], result_action="return_value")
    words = (tmp_path / "run" / "vocab.txt").read_text(encoding="utf-8").split()
    prompt = " ".join(word for word in words if not word.startswith("<"))[:40].rsplit(" ", 1)[0]
    capsys.readouterr()
    example(monkeypatch, "run_to_text.py", run, prompt, "--words", "3", "--to", str(tmp_path / "model"))
    lines = capsys.readouterr().out.splitlines()
    (scored,) = LanguageModel.load(run).score([prompt])
    assert lines[0] == f"perplexity of the prompt: {scored.perplexity:.1f}"
    assert len(lines) == 5
    assert all(line.removeprefix("by beam search: ").startswith(prompt) for line in lines[1:])
