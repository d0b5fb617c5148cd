"""varsmooth train"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from varsmooth.cli.app import app, errors
from varsmooth.config import override
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting, resume_run, start_run
from varsmooth.recipe import load_recipe, recipe_names


@app.command
def train(
    *,
    recipe: str = "vanilla",
    data: str | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    seed: int | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    tensorboard: Annotated[bool, Parameter(negative="")] = False,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Train a language model.

    The run goes into a folder of its own, which keeps the best model, the metrics, and the state to continue from. Stop it at
    any time with Ctrl-C; `--resume` goes on bit for bit.

    Examples:

        varsmooth train --data python --recipe smoothing-kneser-ney/small --out runs/kn
        varsmooth train --data my-text/ --recipe element-kneser-ney/small --out runs/mine --set train.lr=0.004
        varsmooth train --resume runs/mine

    Parameters
    ----------
    recipe
        A named recipe (`varsmooth recipes` lists them) or a TOML file of your own.
    data
        A data set's name (`varsmooth data list`) or a folder with train.txt, valid.txt and test.txt.
    out
        The folder to make for the run.
    resume
        Continue this run instead of starting one.
    seed
        The same as `--set train.seed=...`.
    set_
        Override a configuration key, as in `train.lr=0.004`; may be given more than once.
    tensorboard
        Also log to RUN/tensorboard (needs the `log` extra).
    json_
        Print the run's record as JSON when it ends; progress goes to standard error.
    """
    reporting = Reporting(errors if json_ else Console(), tensorboard)
    if resume is not None:
        if out is not None or set_ or data or seed is not None:
            raise InputError("--resume takes everything from the run: leave out --out, --data, --seed and --set")
        record, folder = resume_run(resume, reporting), resume
    else:
        if out is None:
            raise InputError("--out is missing: name the folder to make for the run, such as --out runs/first")
        config = override(load_recipe(recipe), [*([f"data.name={json.dumps(data)}"] if data else []), *(set_ or [])])
        if seed is not None:
            config = override(config, [f"train.seed={seed}"])
        record, folder = start_run(config, out, reporting), out
    return _report(record, folder, reporting.console, json_)


@app.command
def recipes() -> None:
    """List the recipes: the rows of the paper's table, each also as ROW/SETTING for a data set and a size.

    For example:

        varsmooth recipes
    """
    for name in recipe_names():
        print(name)


def _report(record: dict[str, Any], folder: Path, console: Console, as_json: bool) -> int:
    """Say how a run ended; return the exit status."""
    if as_json:
        print(json.dumps(record))
    if record["status"] == "stopped":
        resume = f"varsmooth train --resume {shlex.quote(str(folder))}"
        errors.print(f"varsmooth: stopped at step {record['steps']}; to go on: {resume}")
        return 128 + int(record["signal"])
    if not as_json:
        best = record["best"]
        console.print(f"best model: step {best['step']}, valid perplexity {_figure(best['valid_perplexity'])}", highlight=False)
        for found in record["results"]:
            if found["split"] == "test":
                control = "at its tuned temperature" if found["tuned_temperature"] else "at temperature 1"
                figure = _figure(found["perplexity"])
                console.print(f"test perplexity {figure} by {found['predict']}, {control}", highlight=False)
        console.print(f"run: {folder}", highlight=False, soft_wrap=True)
    return 0


def _figure(perplexity: float | None) -> str:
    """A record holds null where a number was not finite."""
    return "beyond all numbers" if perplexity is None else f"{perplexity:.2f}"
