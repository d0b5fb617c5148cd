from __future__ import annotations

import inspect
import re
import shlex
from functools import reduce

import pytest
from cyclopts import App

from commands_for_tests import VERBS
from varsmooth.cli import app, main


def test_the_loop_finds_the_verbs_and_their_own_verbs() -> None:
    assert {("train",), ("stats",), ("report",), ("data",), ("data", "list"), ("data", "check"), ("data", "get")} <= set(VERBS)


@pytest.fixture(params=VERBS, ids=" ".join)
def verb(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture
def shown(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Return a verb's help."""
    with pytest.raises(SystemExit) as left:
        main([*verb, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_every_verb_has_help_with_an_example(verb: tuple[str, ...], shown: str) -> None:
    assert shown.startswith(f"Usage: varsmooth {' '.join(verb)}")
    assert re.search(rf"^ *varsmooth {' '.join(verb)}\b", shown, re.MULTILINE), "no line shows how the verb is called"


def test_no_option_has_a_contrary(shown: str) -> None:
    assert not re.search("--(no|empty)-", shown)


def examples(verb: tuple[str, ...]) -> list[str]:
    text, _, _ = inspect.cleandoc(str(reduce(App.__getitem__, verb, app).help)).partition("\nParameters\n")
    return re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)


def arguments(example: str) -> list[str]:
    """Return what the shell gives to varsmooth."""
    words = shlex.split(example)
    end = words.index(">") if ">" in words else None
    return words[words.index("varsmooth") + 1 : end]


def test_an_example_can_be_copied_from_80_columns(
    verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*verb, "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert examples(verb)
    for example in examples(verb):
        assert example in lines
        app.parse_args(arguments(example), exit_on_error=False, print_error=False)
