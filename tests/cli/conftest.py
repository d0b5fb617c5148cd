"""Running a command in this process."""

from __future__ import annotations

import pytest

from commands_for_tests import Outcome, Run
from varsmooth.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; return its exit status and what it wrote to standard output and standard error."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    return run
