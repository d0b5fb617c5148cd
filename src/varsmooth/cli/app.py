"""The command-line application: where verbs are registered, and how errors leave it."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import NoReturn, get_args

from cyclopts import App, CoercionError, CycloptsError, Parameter, UnusedCliTokensError
from rich.console import Console

from varsmooth.cli.output import OutputConsole, drop_output, lasting_errors, named_output, open_streams
from varsmooth.errors import InputError, is_out_of_memory
from varsmooth.version import VERSION

FAILED = 1
"""The exit status where the work was done and part of it failed or is missing."""
BAD_INPUT = 2

app = App(
    name="varsmooth",
    version=VERSION,
    help="Variational smoothing for language models trained on little data.",
    help_format="markdown",
    default_parameter=Parameter(negative=""),  # --json has no --no-json, and --set no --empty-set
)

errors = Console(file=lasting_errors(), soft_wrap=True, highlight=False, markup=False, emoji=False)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and leave with its status: 0, 1 where part of it failed, 2 for bad input, 128 + n after signal n."""
    # Of no use to anyone: torch warns when autograd's thread meets cuBLAS before it has a context, and then makes one.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")
    open_streams()
    try:
        with named_output():
            status = app(
                arguments, exit_on_error=False, print_error=False, result_action="return_value", console=OutputConsole()
            )
    except CycloptsError as error:
        _fail(_complaint(error))
    except InputError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail("out of memory: lower train.batch, model.hidden, model.layers or the size of the data")
    except BrokenPipeError:
        drop_output()  # the reader has gone (varsmooth score ... | head): leave quietly
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        # What nobody foresaw: a disk that is full, a folder that cannot be written.
        _fail(f"{error.filename}: {error.strerror}" if error.filename else f"cannot be read or written: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(status if isinstance(status, int) else 0)


def _complaint(error: CycloptsError) -> str:
    """Say what is wrong with the arguments, without the names of Python's types."""
    if isinstance(error, CoercionError) and error.token is not None and error.argument is not None:
        for number, kind in ((int, "a whole number"), (float, "a number")):
            if number in (error.target_type, *get_args(error.target_type)):
                return f"{error.argument.name} must be {kind}, got {error.token.value!r}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        unused = ", ".join(map(repr, error.unused_tokens))
        return f"unexpected: {unused}; put quotes around a value that holds spaces, or leave this out"
    return str(error)


def _fail(message: str) -> NoReturn:
    """Print one line and leave with status 2."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()
    errors.print("varsmooth: " + " ".join(message.split()))
    sys.exit(BAD_INPUT)
