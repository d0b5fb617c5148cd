"""What the values of options mean that several verbs have: whole numbers, lists with commas, files to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter, Token

from varsmooth.errors import InputError
from varsmooth.files import check_place
from varsmooth.text.reading import exists

Number = TypeVar("Number", int, float)


def _whole(_: type[int], tokens: Sequence[Token]) -> int:
    (token,) = tokens
    return int(token.value)


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number; of a plain int, cyclopts would round what is none."""


def parse_whole_numbers(flag: str, text: str | None, example: str) -> list[int]:
    return _parse(int, text, f"{flag} takes whole numbers with commas between them, such as {example}")


def parse_numbers(flag: str, text: str | None, example: str) -> list[float]:
    return _parse(float, text, f"{flag} takes numbers with commas between them, such as {example}")


def parse_names(flag: str, text: str | None) -> list[str]:
    """Return each name once."""
    names = [] if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if text is not None and not names:
        raise InputError(f"{flag} takes one or more names with commas between them; got none")
    return list(dict.fromkeys(names))


def check_page(flag: str, page: Path, *beside: Path, force: bool) -> None:
    """Refuse a name that is not one of HTML; without ``force`` also a page, or a file ``beside`` it, that is there already."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{flag} {page}: the page is HTML; give it a name that ends in .html")
    for path in (page, *beside):
        _check_file(flag, path, force=force)


def check_picture(flag: str, picture: Path, *, force: bool) -> None:
    """Refuse a name that is not one of PNG; without ``force`` also a picture that is there already."""
    if picture.suffix.lower() != ".png":
        raise InputError(f"{flag} {picture}: the picture is a PNG; give it a name that ends in .png")
    _check_file(flag, picture, force=force)


def _check_file(flag: str, path: Path, *, force: bool) -> None:
    if not force and exists(path):
        raise InputError(f"{path} exists already; choose another name with {flag}, or replace it with --force")
    check_place(path, flag)


def _parse(number: Callable[[str], Number], text: str | None, rule: str) -> list[Number]:
    try:
        return [] if text is None else [number(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{rule}; got {text!r}") from None
