"""Tiny studies, whose trials take a fraction of a second."""

from __future__ import annotations

import copy
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from varsmooth.experiment import Reporting
from varsmooth.sweep import FILE, Board, Store, Study, SweepEnd, parse_study, work

TEXT = "the cat sat on the mat\nthe dog sat on the <unk>\n\na cat and a dog sat\n"
STUDY: dict[str, Any] = {
    "name": "tiny",
    "data": "text",
    "sampler": "grid",
    "budget": {"steps": 8},
    "base": {
        "model": {"hidden": 8, "layers": 1},
        "train": {"batch": 4, "window": 5, "device": "cpu", "eval_every": 2, "save_every": 2},
        "evaluate": {"batch": 3, "window": 16, "burn_in": 4},
    },
    "space": {"train": {"lr": [0.01, 0.03]}},
    "arms": [{"recipe": "vanilla"}, {"name": "kn", "recipe": "smoothing-kneser-ney"}],
}


def tiny_table(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(STUDY), **changes}


def write_text(folder: Path) -> Path:
    """Make the data set ``text`` in a folder."""
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for split, times in (("train", 20), ("valid", 3), ("test", 4)):
        (folder / "text" / f"{split}.txt").write_text(TEXT * times)
    return folder


def tiny_study(folder: Path, **changes: Any) -> Study:
    return parse_study(tiny_table(**changes), "tiny.toml", write_text(folder))


@cache
def empty_database() -> bytes:
    """Making the tables takes most of a second, so they are made once."""
    with tempfile.TemporaryDirectory() as folder:
        Store.in_folder(Path(folder)).storage.remove_session()
        return (Path(folder) / FILE).read_bytes()


def store_in(out: Path) -> Store:
    out.mkdir(parents=True, exist_ok=True)
    if not (out / FILE).exists():
        (out / FILE).write_bytes(empty_database())
    return Store.in_folder(out)


def swept(study: Study, out: Path, at_once: int = 1, **options: Any) -> SweepEnd:
    """Work on a study in this process."""
    return work(study, out, store_in(out), Reporting(Console(quiet=True)), at_once, **options)


def board_of(study: Study, out: Path) -> Board:
    return Board(study, store_in(out))


def outcomes(board: Board) -> dict[str, dict[int, str]]:
    return {stage.title: {slot: trial.state.name for slot, trial in stage.outcomes().items()} for stage in board.arms}
