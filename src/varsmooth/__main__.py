"""python -m varsmooth, and torchrun -m varsmooth train"""

import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

from varsmooth.cli import main
from varsmooth.cli.app import BAD_INPUT, errors
from varsmooth.errors import InputError
from varsmooth.train.parallel import is_first

LATER = 5.0
"""Seconds that the first process has to complain: what is wrong for all it tells, and torchrun then ends the others."""


def run(arguments: list[str]) -> NoReturn:
    """Run one command; where torchrun has started several processes, the first speaks for all, if it can."""
    try:
        first = is_first()
    except InputError as error:
        _fail(str(error))
    if first:
        main(arguments)
    status: object = 0
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), errors.capture() as complaint:
        try:
            main(arguments)
        except SystemExit as leaving:
            status = leaving.code
    if status == BAD_INPUT:
        time.sleep(LATER)
        sys.stderr.write(complaint.get())
    raise SystemExit(status)


def _fail(message: str) -> NoReturn:
    errors.print(f"varsmooth: {message}")
    sys.exit(BAD_INPUT)


if __name__ == "__main__":
    run(sys.argv[1:])
