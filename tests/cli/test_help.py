from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cyclopts import App

from varsmooth.cli import app, main


def verbs(parent: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in parent:
        if not name.startswith("-"):
            yield (*path, name)
            yield from verbs(parent[name], (*path, name))


VERBS = list(verbs(app))


def test_the_loop_finds_the_verbs_and_their_own_verbs() -> None:
    assert {("train",), ("stats",), ("report",), ("data",), ("data", "list"), ("data", "check"), ("data", "get")} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*verb, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: varsmooth {' '.join(verb)}")
    assert re.search(rf"^ *varsmooth {' '.join(verb)}\b", shown, re.MULTILINE), "no line shows how the verb is called"
