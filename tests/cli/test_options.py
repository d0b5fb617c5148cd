"""What the values of options may be, over all verbs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import get_args

import pytest
from cyclopts import App
from cyclopts.argument import ArgumentCollection

from commands_for_tests import VERBS, Run, refused
from varsmooth.cli import app

Verb = tuple[str, ...]


def options(verb: Verb) -> ArgumentCollection:
    return reduce(App.__getitem__, verb, app).assemble_argument_collection(parse_docstring=False)


def whole_numbers() -> Iterator[tuple[Verb, str]]:
    for verb in VERBS:
        if verb != ("data",):  # which does nothing itself
            yield from ((verb, option.name) for option in options(verb) if int in (option.hint, *get_args(option.hint)))


WHOLE = list(whole_numbers())


def test_the_loop_finds_the_whole_numbers() -> None:
    few = {(("train",), "--seed"), (("sweep", "ask"), "--number"), (("stats",), "--min-count"), (("sweep",), "--worker")}
    assert few <= set(WHOLE)


def needed(verb: Verb, but: str) -> Iterator[str]:
    for option in options(verb):
        if option.required and option.name != but:
            yield from (option.name, "x") if option.name.startswith("-") else ("x",)


@pytest.mark.parametrize(("verb", "option"), WHOLE, ids=lambda part: part if isinstance(part, str) else " ".join(part))
@pytest.mark.parametrize("value", ["2.5", "two"])
def test_a_whole_number_is_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb, option: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run(*verb, *needed(verb, option), option, value), f"varsmooth: {option} must be a whole number, got '{value}'")


def test_a_number_is_one(run: Run) -> None:
    refused(run("stats", "python", "--gamma", "much"), "varsmooth: --gamma must be a number, got 'much'")
    refused(run("train", "--minutes", "few"), "varsmooth: --minutes must be a number, got 'few'")
