"""What a study searches: for each configuration key a list of values, or a range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, get_args

from varsmooth.config import HINTS, SECTIONS, Config, unknown_key
from varsmooth.errors import InputError, nearest

RANGE_KEYS = ("low", "high", "log", "step")
DIGITS = 12
"""Steps of a range are rounded to this many, so that 0.1 + 2 * 0.1 is 0.3."""


@dataclass(frozen=True)
class Choice:
    """A list of values, all equally likely."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``: on a logarithmic scale, or in steps."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def values(self) -> list[float]:
        """The points of a range with a step."""
        assert self.step is not None
        count = round((self.high - self.low) / self.step)
        points = [round(self.low + number * self.step, DIGITS) for number in range(count + 1)]
        return [int(point) for point in points] if self.whole else points


Dimension: TypeAlias = Choice | Range
Space: TypeAlias = dict[str, Dimension]


def parse_space(table: Any, source: str) -> Space:
    """Read a ``[space]`` table; ``source`` opens every message."""
    return {key: _dimension(key, value, f"{source}: {key}") for key, value in flattened(table, source).items()}


def space_mapping(space: Space) -> dict[str, Any]:
    """Return a space as JSON can hold it."""
    return {key: list(found.values) if isinstance(found, Choice) else asdict(found) for key, found in space.items()}


def space_from_mapping(mapping: Mapping[str, Any]) -> Space:
    """Read ``space_mapping`` back."""
    return {key: Choice(tuple(found)) if isinstance(found, list) else Range(**found) for key, found in mapping.items()}


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination of the values, the last key changing fastest."""
    columns = [found.values if isinstance(found, Choice) else found.values() for found in space.values()]
    for row in itertools.product(*columns):
        yield dict(zip(space, row, strict=True))


def finite_size(space: Space) -> int | None:
    """How many combinations there are; None where a range has no step."""
    return None if any(isinstance(found, Range) and found.step is None for found in space.values()) else grid_size(space)


def point_at(space: Space, place: int) -> dict[str, Any]:
    """The combination at a place of the grid, without those before it."""
    found: dict[str, Any] = {}
    for key, dimension in reversed(space.items()):
        values = dimension.values if isinstance(dimension, Choice) else dimension.values()
        place, index = divmod(place, len(values))
        found[key] = values[index]
    return {key: found[key] for key in space}


def recipe_point(config: Config, space: Space) -> dict[str, Any]:
    """The values that a configuration has for the keys of a space, as far as they lie in it."""
    values = {key: getattr(getattr(config, key.partition(".")[0]), key.partition(".")[2]) for key in space}
    return {key: value for key, value in values.items() if holds(space[key], value)}


def holds(dimension: Dimension, value: Any) -> bool:
    """Whether a trial may have this value."""
    if isinstance(dimension, Choice):
        return value in dimension.values
    return value in dimension.values() if dimension.step is not None else dimension.low <= value <= dimension.high


def grid_size(space: Space) -> int:
    """How many combinations there are."""
    return math.prod(len(found.values) if isinstance(found, Choice) else len(found.values()) for found in space.values())


def flattened(table: Any, source: str) -> dict[str, Any]:
    """Return ``section.key`` names with their values, however the file writes them; every key must exist."""
    if not isinstance(table, Mapping):
        raise InputError(f"{source}: must be a table with keys such as train.lr, got {table!r:.80}")
    found: dict[str, Any] = {}
    for name, value in table.items():
        if name in SECTIONS and isinstance(value, Mapping):
            found |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            found[name] = value
    known = [f"{section}.{key}" for section, keys in HINTS.items() for key in keys]
    for name in found:
        if name not in known:
            raise InputError(f"{source}: {unknown_key(name)}")
    return found


def _dimension(key: str, value: Any, source: str) -> Dimension:
    if isinstance(value, list):
        return _choice(value, source)
    if isinstance(value, Mapping):
        return _range(key, value, source)
    raise InputError(f"{source}: must be a list of values, or a range such as {{low = 0.001, high = 0.01, log = true}}")


def _choice(values: list[Any], source: str) -> Choice:
    if not values or not all(isinstance(value, bool | int | float | str) for value in values):
        raise InputError(f"{source}: a list needs at least one value, each a number, a text, true or false")
    if len({(isinstance(value, bool), value) for value in values}) < len(values):
        raise InputError(f"{source}: a value is there twice in {values}")
    return Choice(tuple(values))


def _range(key: str, table: Mapping[str, Any], source: str) -> Range:
    for name in table:
        if name not in RANGE_KEYS:
            raise InputError(
                f"{source}: unknown key {name!r}{nearest(name, RANGE_KEYS) or '; a range has ' + ', '.join(RANGE_KEYS)}"
            )
    kind = _number_kind(key)
    if kind is None:
        raise InputError(f"{source}: is no number, so it takes a list of values and no range")
    numbers = {name: _number(table[name], kind, f"{source}.{name}") for name in ("low", "high", "step") if name in table}
    if "low" not in numbers or "high" not in numbers:
        raise InputError(f"{source}: a range needs both low and high")
    low, high, step, log = numbers["low"], numbers["high"], numbers.get("step"), table.get("log", False)
    if not isinstance(log, bool):
        raise InputError(f"{source}.log: must be true or false, got {log!r:.80}")
    if not low < high:
        raise InputError(f"{source}: low must be less than high, got {low} and {high}")
    if log and (low <= 0 or step is not None):
        raise InputError(f"{source}: with log = true, low must be above 0 and there is no step")
    if step is not None:
        parts = (high - low) / step if step > 0 else 0.0
        if parts < 1 or abs(parts - round(parts)) > 1e-6:
            raise InputError(
                f"{source}: step must lead from low to high in a whole number of steps, got {low}, {high} and {step}"
            )
    return Range(low, high, log, step, kind is int)


def _number_kind(key: str) -> type | None:
    """Return int or float for a key that holds a number, else None."""
    section, _, name = key.partition(".")
    kinds = get_args(HINTS[section][name])
    return next((kind for kind in kinds if kind in (int, float)), None)


def _number(value: Any, kind: type, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float) or not math.isfinite(value):
        raise InputError(f"{source}: must be a {'whole ' if kind is int else ''}number, got {value!r:.80}")
    return kind(value)  # type: ignore[no-any-return]
