"""Writing to standard output, which may go away while long work goes on."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast

from rich.console import Console

from varsmooth.train import display


class OutputConsole(Console):
    """As rich's; but that a reader has gone is for ``main`` to tell, with the status of the signal."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Lasting:
    """A stream whose reader may leave, or whose disk may fill up: what can no longer be written is dropped."""

    def __init__(self, current: Callable[[], TextIO]) -> None:
        """``current`` is asked for the stream each time: standard error may be another by then."""
        self._current, self._gone = current, False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                return self._current().write(text)
            except OSError:
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self._current().flush()
            except OSError:
                self._lose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def _lose(self) -> None:
        self._gone = True
        _drop(self._current())


class Named:
    """A stream whose errors have its name, as those of a file have."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        with self._errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._name
            raise


def open_streams() -> None:
    """Make standard input and output usable: one that was closed is empty, and characters that it cannot encode are escaped."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def named_output() -> Iterator[None]:
    """Have errors of standard output name it; in the end all of it is written."""
    with redirect_stdout(cast(TextIO, Named(sys.stdout, "standard output"))):
        yield
        sys.stdout.flush()


def lasting_console() -> Console:
    """Return a console for work that must not be lost with a line of its log."""
    stream = sys.stdout
    return OutputConsole(file=cast(TextIO, Lasting(lambda: stream)))


def lasting_errors() -> TextIO:
    """Return standard error, whatever that is when something is written; nothing where it was closed from the beginning."""
    nothing = io.StringIO()

    def current() -> TextIO:
        # While a progress bar is shown, rich puts a stream of its own in its place, which prints on a console: on ours.
        found: TextIO = getattr(sys.stderr, "rich_proxied_file", sys.stderr) or nothing
        return found

    return cast(TextIO, Lasting(current))


def say(message: str, console: Console | None = None) -> None:
    """Print a line as it is, on standard output unless a console is given."""
    display.say(console or OutputConsole(), message)


def figure(value: float | None) -> str:
    """Return the cell of a table, which is empty where there is no number."""
    return "" if value is None else f"{value:.2f}"


def drop_output() -> None:
    """Send what standard output still holds nowhere, so that the interpreter does not complain of it at exit."""
    _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    with suppress(OSError):  # one in memory has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
