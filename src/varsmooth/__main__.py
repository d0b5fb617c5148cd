"""varsmooth, python -m varsmooth, and torchrun -m varsmooth train; the command line itself takes seconds to import"""

import os
import signal
import sys
import time
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import NoReturn

LATER = 5.0
"""Seconds that the first process has to complain: what is wrong for all it tells, and torchrun then ends the others."""


def main() -> NoReturn:
    """Run the command that this process was started with; Ctrl-C ends it also where it meets an import."""
    if os.environ.get("COLUMNS") == "0":  # as terminals have it that do not know their width; nothing would be shown
        del os.environ["COLUMNS"]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        # Not an exception, of which an import may make another one, or none.
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
        try:
            import_module("varsmooth.cli")
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    run(sys.argv[1:])


def run(arguments: list[str]) -> NoReturn:
    """Run one command; where torchrun has started several processes to train, the first speaks for all, if it can."""
    from varsmooth import cli
    from varsmooth.cli.app import BAD_INPUT, errors
    from varsmooth.errors import InputError
    from varsmooth.train.parallel import is_first

    if arguments[:1] != ["train"]:  # a cluster may set torchrun's variables for whatever it runs
        cli.main(arguments)
    try:
        first = is_first()
    except InputError as error:
        errors.print(f"varsmooth: {error}")
        sys.exit(BAD_INPUT)
    if first:
        cli.main(arguments)
    status: object = 0
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), errors.capture() as complaint:
        try:
            cli.main(arguments)
        except SystemExit as leaving:
            status = leaving.code
    if status == BAD_INPUT:
        time.sleep(LATER)
        sys.stderr.write(complaint.get())
    raise SystemExit(status)


if __name__ == "__main__":
    main()
