"""Signals to this process: noted, so that what is under way can be saved, or obeyed where there is nothing to save."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):  # noqa: N818, it is no error
    """A signal arrived where it may stop the work at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class Interruptions:
    """While active, SIGINT and SIGTERM are noted instead of obeyed, so that the step in progress can end and be saved."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work of which nothing is kept: a signal raises ``Interrupted`` where it arrives, and so does one noted before."""
        self._at_once = True
        try:
            if self.received is not None:
                raise Interrupted(self.received)
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received = number
        if self._at_once:
            raise Interrupted(number)
