"""Running a command in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from varsmooth.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; return its exit status and what it wrote to standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    return run
