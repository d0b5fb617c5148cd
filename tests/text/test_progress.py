"""Bars for long texts: on a terminal, and nowhere else."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from varsmooth.text import Corpus, bigrams, progress
from varsmooth.text import counts as counts_module
from varsmooth.text.counts import Counts


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal would show."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    return screen


def test_encoding_and_counting_a_large_text_show_how_far_they_are(
    shown: io.StringIO, make_folder: Callable[..., Path], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts_module, "SHOWN_ABOVE", 1)
    corpus = Corpus.from_folder(make_folder(), mapped=True)
    Counts.from_ids(corpus.train, len(corpus.vocab), out_of_core=True)
    for words in ("reading", "counting words", "encoding", "counting", "counting distinct bigrams"):
        assert words in shown.getvalue()
    assert "100%" in shown.getvalue()


def test_where_nobody_looks_nothing_is_shown(capfd: pytest.CaptureFixture[str], make_folder: Callable[..., Path]) -> None:
    Corpus.from_folder(make_folder(), mapped=True)
    with bigrams.bigram_set(3, out_of_core=False) as found:
        found.add(np.array([0, 1]))
    with progress.waiting("for nothing"):
        pass
    assert capfd.readouterr() == ("", "")


def test_what_is_told_moves_the_bar(shown: io.StringIO) -> None:
    advance: Any
    with progress.progress_bar("counting", 4) as advance:
        advance(2)
    assert "50%" in shown.getvalue()
