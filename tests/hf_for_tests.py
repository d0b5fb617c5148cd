"""What the tests of the Hugging Face parts share: models with random weights, and a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from networks_for_tests import WORDS, some_network, tiny_config
from varsmooth import LanguageModel, Vocab
from varsmooth.experiment import Reporting, start_run

LINES = ("the cat sat on the mat", "a dog sat on the cat", "the dog and the cat ran", "", "a mat")
VOCAB = Vocab(("the", "<eos>", "<unk>", *(f"w{row}" for row in range(3, WORDS))))


def some_language_model(predict: str = "mean", scale: float = 0.5, **options: Any) -> LanguageModel:
    """A model whose weights are random; the smaller ``scale``, the less its softmax saturates."""
    network = some_network(**options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)
    return LanguageModel(network, VOCAB, tiny_config("vanilla", f"smoothing.predict={predict}"))


def some_run(folder: Path, *changes: str, recipe: str = "smoothing-kneser-ney") -> Path:
    """A finished run whose vocabulary has ``<unk>``."""
    (folder / "text").mkdir(parents=True)
    text = "\n".join(LINES * 6) + "\n"
    for split, content in {"train": text + "a rare word\n", "valid": text, "test": "the cat and a bird\n" * 3}.items():
        (folder / "text" / f"{split}.txt").write_text(content)
    settings = (f"data.name={folder / 'text'}", "train.steps=25", "train.eval_every=10", "data.min_count=2")
    start_run(tiny_config(recipe, *settings, *changes), folder / "run", Reporting(Console(quiet=True)))
    return folder / "run"
