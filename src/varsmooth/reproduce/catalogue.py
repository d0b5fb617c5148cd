"""What the package knows of the paper: its rows and corpora (plan.toml), and its figures cell by cell (paper.toml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, get_args

from varsmooth.config import parse_toml
from varsmooth.errors import check_choice

Setting = Literal["paper", "tuned"]
Budget = Literal["quick", "full"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
BUDGETS: tuple[Budget, ...] = get_args(Budget)
SIZES = (512, 1024)
Values: TypeAlias = dict[str, Any]
"""Values under dotted names, such as ``train.lr``."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a recipe, and how it is called there."""

    name: str
    label: str
    headline: bool = False


@dataclass(frozen=True)
class CorpusPlan:
    name: str
    title: str
    rows: tuple[Row, ...]
    seeds: dict[int, tuple[int, ...]]
    """by size"""


@dataclass(frozen=True)
class PaperCell:
    """What the paper prints; None where it leaves a cell empty, or has no such row."""

    valid: float | None = None
    test: float | None = None


@cache
def corpora() -> dict[str, CorpusPlan]:
    """Return the corpora by name."""
    content = packaged("plan.toml")
    rows = {name: Row(name, **about) for name, about in content["rows"].items()}
    return {
        name: CorpusPlan(
            name,
            about["title"],
            tuple(rows[row] for row in about["rows"]),
            {int(size): tuple(seeds) for size, seeds in about["seeds"].items()},
        )
        for name, about in content["corpora"].items()
    }


def corpus_plan(name: str) -> CorpusPlan:
    """Return the plan for a corpus, or refuse the name."""
    check_choice("the corpus", name, corpora())
    return corpora()[name]


def budget_values(budget: Budget) -> Values:
    """Return what a budget changes in every configuration."""
    check_choice("--budget", budget, BUDGETS)
    return dict(packaged("plan.toml")["budgets"].get(budget, {}))


def paper_cell(corpus: str, size: int, row: str) -> PaperCell:
    """Return the paper's figures for a row."""
    return PaperCell(*packaged("paper.toml")[corpus].get(str(size), {}).get(row, []))


def paper_sampling(corpus: str, size: int) -> dict[str, float]:
    """Return the paper's development perplexities with sampling, by row; empty where it has none."""
    return dict(packaged("paper.toml")["sampling"].get(corpus, {}).get(str(size), {}))


def draws_for(corpus: str, size: int, row: str) -> int:
    """Return how many draws a row is to be evaluated with: as many as in the paper, where it has a figure for them."""
    return int(packaged("paper.toml")["sampling"]["draws"]) if row in paper_sampling(corpus, size) else 0


@cache
def packaged(name: str) -> dict[str, Any]:
    """Read one of the package's TOML files."""
    return parse_toml(files("varsmooth").joinpath("reproduce", name).read_text("utf-8"), name)
