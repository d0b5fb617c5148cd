"""varsmooth recipes"""

from __future__ import annotations

import json

from rich.table import Table

from varsmooth.cli.app import app
from varsmooth.cli.output import OutputConsole
from varsmooth.config import to_mapping
from varsmooth.keys import explained_toml
from varsmooth.recipe import described_rows, described_settings, load_recipe, recipe_names


@app.command
def recipes(name: str | None = None, /, *, json_: bool = False) -> None:
    """List the recipes, or print one with all its configuration keys and what they mean.

    A recipe is a ROW of the paper's table, or ROW/SETTING: the row on a given data set and at a given size. What is printed of
    one is TOML that `varsmooth train --recipe FILE.toml` takes; `--set` of `varsmooth train` overrides any of its keys.

    Examples:

        varsmooth recipes
        varsmooth recipes smoothing-kneser-ney/small
        varsmooth recipes vanilla/small > mine.toml
        varsmooth recipes mine.toml --json

    Parameters
    ----------
    name
        The recipe to print: a name from the list, or a TOML file of your own.
    json_
        Print the list, or the recipe's configuration, as JSON.
    """
    if name is None:
        _print_list(as_json=json_)
    elif json_:
        print(json.dumps(to_mapping(load_recipe(name))))
    else:
        print(explained_toml(load_recipe(name)), end="")


def _print_list(*, as_json: bool) -> None:
    rows, settings = described_rows(), described_settings()
    if as_json:
        print(json.dumps({"recipes": recipe_names(), "rows": rows, "settings": settings}))
        return
    plain = load_recipe("vanilla")
    size = f"{plain.model.hidden} units and {plain.train.steps:,} steps"
    console = OutputConsole(highlight=False, markup=False, emoji=False)
    console.print(_table("row", rows))
    console.print()
    console.print(_table("setting", settings))
    console.print()
    console.print(f"A recipe is a ROW, with {size} (hours on a CPU), or ROW/SETTING, such as vanilla/small.")
    console.print("varsmooth recipes NAME prints one: every key, its value, and what it means.")


def _table(title: str, described: dict[str, str]) -> Table:
    table = Table(title, "what it is", box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for name, about in described.items():
        table.add_row(name, about)
    return table
