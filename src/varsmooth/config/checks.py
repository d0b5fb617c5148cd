"""What a value of the configuration may be, and how one is refused that it may not be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from varsmooth.errors import InputError, nearest


@dataclass(frozen=True)
class Interval:
    """The values a number may take; ``open`` names the ends that do not belong to it."""

    low: float
    high: float
    open: Literal["", "low", "high", "both"] = ""

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open in ("low", "both") else value >= self.low
        below = value < self.high if self.open in ("high", "both") else value <= self.high
        return above and below

    def __str__(self) -> str:
        left = "(" if self.open in ("low", "both") else "["
        right = ")" if self.open in ("high", "both") else "]"
        return f"{left}{self.low}, {self.high}{right}"


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as the type that ``hint`` asks for, or refuse it by name."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            hinted = nearest(value, choices) if isinstance(value, str) else ""
            raise InputError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}{hinted}")
        return value
    if get_origin(hint) is Annotated:
        kind, interval = get_args(hint)
        return _checked_number(name, value, kind, interval)
    if type(value) is not hint:
        raise InputError(f"{name} must be {'true or false' if hint is bool else 'a string'}, got {shown(value)}")
    if hint is str and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(f"{name} must be text without NUL or undecodable bytes, got {value!a}")
    return value


def _checked_number(name: str, value: Any, kind: type, interval: Interval) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise InputError(f"{name} must be {'a whole number' if kind is int else 'a number'}, got {shown(value)}")
    if value not in interval:
        raise InputError(f"{name} must be in {interval}, got {shown(value)}")
    try:
        return value if kind is int else float(value) + 0.0  # the sum turns -0.0 into 0.0: one value, one checksum
    except OverflowError:
        raise InputError(f"{name} must be in {interval}, got {shown(value)}") from None


def shown(value: Any) -> str:
    """Return ``value`` for a one-line message, however large it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
