"""The one exception that means: the user can fix this."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NO_MEMORY_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


class InputError(ValueError):
    """Bad input or a bad flag; the message is one line that names the culprit and the fix.

    The command line prints it without a traceback and exits with status 2.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``; did you mean 'vanilla'?`` or an empty string when nothing is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices, with the nearest one as a hint."""
    known = list(choices)
    if value not in known:
        hint = nearest(value, known) if isinstance(value, str) else ""
        raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}{hint}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no room for what was asked for; on a CPU torch says so in words alone."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY_SIGNS)
