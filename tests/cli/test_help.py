from __future__ import annotations

import re

import pytest

from commands_for_tests import VERBS
from varsmooth.cli import main


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
