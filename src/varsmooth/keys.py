"""What every configuration key means, for people: TOML with comments, and the page docs/configuration.md.

python -m varsmooth.keys > docs/configuration.md
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from itertools import groupby
from typing import Annotated, Any, Literal, get_args, get_origin

from varsmooth.config import HINTS, Config, Interval, literal, to_toml

PAGE = """\
# Configuration

Every key that a run can be told. `varsmooth recipes NAME` prints all of them as a recipe sets them, and
`varsmooth train --recipe FILE.toml` takes what it prints; a run keeps its own in `config.toml`.

- For one run: `varsmooth train --recipe vanilla/small --set train.lr=0.004 --set model.layers=1 --out runs/first`.
- For several: a recipe of your own, in which a few keys go over those of another recipe:

  ```toml
  about = "a narrow model"      # for people; may be left out
  base = "vanilla/small"        # a recipe's name, or a .toml file beside this one; without it the defaults are the base

  [model]
  hidden = 32
  ```

- In a study (`varsmooth sweep`, [scaling.md](scaling.md)): under `[base]` and `[space]`, written `train.lr = ...`.

The defaults are those of the recipe `vanilla`. Values that do not go together are refused in one line that names both keys.
This page is written by `python -m varsmooth.keys > docs/configuration.md`.
"""


@dataclass(frozen=True)
class Key:
    name: str
    """``section.key``"""
    default: str
    """as TOML"""
    choices: tuple[str, ...]
    """the words it may be; empty where there is no such list"""
    allowed: str
    explanation: str

    @property
    def comment(self) -> str:
        return f"{self.explanation} ({', '.join(self.choices)})" if self.choices else self.explanation


def all_keys() -> Iterator[Key]:
    """Yield every configuration key in the order of the file."""
    for found in fields(Config):
        if found.name in HINTS:
            section = found.default_factory
            assert callable(section)
            yield from (_key(inner, HINTS[found.name][inner.name], f"{found.name}.") for inner in fields(section()))
        else:
            yield _key(found, str, "")


def explained_toml(config: Config) -> str:
    """Return the configuration as TOML with a comment behind every key."""
    return to_toml(config, {key.name: key.comment for key in all_keys()})


def configuration_page() -> str:
    """Return docs/configuration.md."""
    lines: list[str] = []
    for section, keys in groupby(all_keys(), lambda key: key.name.rpartition(".")[0]):
        lines += ["", f"## {section}"] if section else []
        lines += ["", "| key | default | allowed | what it is |", "|---|---|---|---|"]
        lines += (f"| `{key.name}` | `{key.default}` | {key.allowed} | {_escaped(key.explanation)} |" for key in keys)
    return PAGE + "\n".join(lines) + "\n"


def _key(found: Field[Any], hint: Any, prefix: str) -> Key:
    choices = tuple(get_args(hint)) if get_origin(hint) is Literal else ()
    default: Any = found.default
    return Key(prefix + found.name, literal(default), choices, _allowed(hint), found.metadata["explanation"])


def _allowed(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) is Annotated:
        kind, interval = get_args(hint)
        return f"{'whole number' if kind is int else 'number'} {_words(interval)}"
    return "`true`, `false`" if hint is bool else "text"


def _words(interval: Interval) -> str:
    """Return the interval in words, such as ``from 0 to below 1``."""
    low_open, high_open = interval.open in ("low", "both"), interval.open in ("high", "both")
    low = f"{'above' if low_open else 'from'} {interval.low:,}"
    if math.isinf(interval.high):
        return low if low_open else f"{low} up"
    if low_open:
        return f"{low} and {'below' if high_open else 'up to'} {interval.high:,}"
    return f"{low} to {'below ' if high_open else ''}{interval.high:,}"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")


if __name__ == "__main__":
    print(configuration_page(), end="")
