"""Tables and figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from varsmooth.experiment.seeds import Spread, shown_spread

NOTHING = "-"
Cells = Sequence[str]


@dataclass(frozen=True)
class PagePart:
    """What a part of the page says; ``empty``: no figure in it is ours."""

    text: str
    empty: bool = False


NOT_RUN = PagePart("Not run yet.", empty=True)


def records_table(header: Cells, rows: Sequence[Cells], texts: int = 1) -> PagePart:
    """Return a table all of whose rows are ours, ``NOT_RUN`` where there are none."""
    return PagePart(table(header, rows, texts)) if rows else NOT_RUN


def table_with_gaps(text: str, missing: Sequence[str] = (), *, empty: bool) -> PagePart:
    """Return a table, and what is said of it, that has rows without a record too: those are named, or that it is ``empty``."""
    return PagePart(paragraphs(text, NOT_RUN.text if empty else told("Not run yet", missing)), empty)


def table(header: Cells, rows: Iterable[Cells], texts: int = 1) -> str:
    """Return a table whose first ``texts`` columns are words, the others figures."""
    rule = ["---" if number < texts else "---:" for number in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def shown(value: Spread | float | None, decimals: int = 2, seeds: int | None = None) -> str:
    """Return ``70.52 ±0.20``; a single figure has no spread, one of fewer ``seeds`` says so, a missing one is a dash."""
    if value is None:
        return NOTHING
    if isinstance(value, Spread):
        return shown_spread(value, value.seeds if seeds is None else seeds, decimals)
    return f"{value:,.{decimals}f}"


def paper_shown(value: float | None) -> str:
    """Return a figure as the paper prints it."""
    return shown(value, 1)


def pair(valid: Spread | None, test: Spread | None) -> str:
    """Return ``valid / test`` in one cell."""
    return NOTHING if valid is None and test is None else f"{shown(valid)} / {shown(test)}"


def settings_shown(values: Mapping[str, Any]) -> str:
    """Return ``key=value`` of each, as code."""
    return ", ".join(f"`{key}={value}`" for key, value in values.items())


def seeds_shown(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or NOTHING


def told(label: str, names: Sequence[str]) -> str:
    """Return ``label: a; b.``, or nothing where there are no names."""
    return f"{label}: {'; '.join(names)}." if names else ""


def paragraphs(*parts: str) -> str:
    """Join what is there, with an empty line between."""
    return "\n\n".join(part for part in parts if part)
