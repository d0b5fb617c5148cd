"""varsmooth train"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from varsmooth.cli.app import app, errors
from varsmooth.cli.fleets import parse_limit, parse_trials, report_fleet
from varsmooth.cli.options import Whole
from varsmooth.cli.output import lasting_console, say
from varsmooth.config import override
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting, resume_run, start_run
from varsmooth.fleet import is_fleet, resume_fleet, start_fleet
from varsmooth.recipe import load_recipe
from varsmooth.text.corpus import refuse_missing
from varsmooth.train.folder_lock import resume_command
from varsmooth.train.parallel import processes
from varsmooth.train.record import result_of


@app.command
def train(
    *,
    recipe: str | None = None,
    fleet: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    data: str | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    seed: Whole | None = None,
    seeds: str | None = None,
    at_once: Whole | None = None,
    minutes: float | None = None,
    within: float | None = None,
    set_: list[str] | None = None,
    tensorboard: bool = False,
    json_: bool = False,
) -> int:
    """Train a language model, or a fleet of them in one process.

    A run goes into a folder of its own, which keeps the best model, the metrics, and the state to continue from. Stop it at
    any time with Ctrl-C; `--resume` goes on: bit for bit on a CPU with as many threads, within rounding on a GPU.

    Without --recipe it trains `vanilla` with 512 units for 20,000 steps: hours on a CPU. `vanilla/small` is quick, minutes.

    A fleet makes such a folder for every recipe and seed. Its runs end, fail and are saved each on its own. The exit status
    is 0, 1 where a run of a fleet failed, 2 for bad input, and 128 + n after signal n; it is 0, too, where --minutes were up.

    Examples:

        varsmooth train --recipe smoothing-kneser-ney/small --out runs/kn
        varsmooth train --data my-text/ --recipe vanilla/small --out runs/mine
        varsmooth train --recipe vanilla/small --out runs/slow --set train.lr=0.004
        varsmooth train --resume runs/mine
        varsmooth train --fleet vanilla/small word-dropout/small --out runs/two
        varsmooth train --fleet vanilla/ptb-512 --seeds 1,2,3 --out runs/ptb
        varsmooth train --fleet trials.json --out runs/trials
        varsmooth train --resume runs/trials

    Parameters
    ----------
    recipe
        A named recipe (`varsmooth recipes` lists them) or a TOML file of your own; the default is vanilla.
    fleet
        Instead of --recipe: one or more recipes, or one .json file with a list of trials such as
        [{"name": "kn-2", "recipe": "smoothing-kneser-ney/ptb-512", "set": {"train.lr": 0.002}, "seed": 2, "data": "ptb"}],
        where recipe alone is needed. What the command line sets goes for every trial.
    data
        A data set's name (`varsmooth data list`) or a folder with train.txt, valid.txt and test.txt; that of the recipe unless
        given, which is python where it does not say.
    data_dir
        The folder that holds ptb/ and wikitext-2/, instead of the one named by `VARSMOOTH_DATA`.
    out
        The folder to make for the run; for a fleet the folder of its runs, which are called RECIPE-seedN or as the file says.
    resume
        Continue this run, or every run of this fleet that has not finished, instead of starting one. A run that has finished
        stays as it is.
    seed
        The same as `--set train.seed=...`.
    seeds
        For a fleet: train every recipe with each of these, as in 1,2,3.
    at_once
        For a fleet: how many runs train at the same time; 8 on a GPU and 1 on the CPU unless given.
    minutes
        For a fleet: after this many minutes save the runs under way and stop; --resume goes on. No run is begun that would not
        end in time at the pace measured so far.
    within
        With --minutes: begin also what would end within this many minutes, because the fleet will be resumed.
    set_
        Override a configuration key, as in `train.lr=0.004`; may be given more than once. `varsmooth recipes NAME` prints every
        key with its value in that recipe and what it means.
    tensorboard
        Also log to RUN/tensorboard (needs the `log` extra).
    json_
        Print the run's record as JSON when it ends, or a fleet's as a list; progress goes to standard error.
    """
    reporting = Reporting(errors if json_ else lasting_console(), tensorboard)
    if data == "":
        raise InputError("--data is empty; give a data set's name or a folder, or leave it out")
    if recipe == "":
        raise InputError("--recipe is empty; give a recipe's name or a .toml file, or leave it out for vanilla")
    texts = {"data.name": data, "data.data_dir": None if data_dir is None else str(data_dir.absolute())}
    quoted = {key: json.dumps(value, ensure_ascii=False) for key, value in texts.items() if value is not None}
    settings = [*(f"{key}={value}" for key, value in quoted.items()), *(set_ or [])]
    if processes() > 1 and (fleet is not None or (resume is not None and is_fleet(resume))):
        raise InputError("--fleet trains its runs in one process: start it without torchrun, or train one run without --fleet")
    if resume is not None:
        if out is not None or settings or seed is not None or recipe or fleet or seeds:
            raise InputError(
                "--resume takes everything from the run: leave out --out, --data, --data-dir, --recipe, --fleet, --seed, "
                "--seeds and --set"
            )
        if is_fleet(resume):
            outcome = resume_fleet(resume, reporting, at_once, limit=parse_limit(minutes, within))
            return report_fleet(outcome, resume, at_once, reporting.console, json_)
        _refuse_fleet_options(seeds, at_once, minutes, within)
        return _report(resume_run(resume, reporting), resume, reporting.console, json_)
    if out is None:
        raise InputError("--out is missing: name the folder to make for the run, such as --out runs/first")
    if fleet is not None:
        if recipe or seed is not None:
            raise InputError("--fleet names its recipes and takes --seeds: leave out --recipe and --seed")
        if data is not None:  # which is every run's; what is wrong with one alone is that one's failure
            refuse_missing(data, data_dir)
        trials = parse_trials(fleet, seeds, settings)
        outcome = start_fleet(trials, out, reporting, at_once, limit=parse_limit(minutes, within))
        return report_fleet(outcome, out, at_once, reporting.console, json_)
    _refuse_fleet_options(seeds, at_once, minutes, within)
    config = override(load_recipe(recipe or "vanilla"), settings)
    if seed is not None:
        config = override(config, [f"train.seed={seed}"])
    return _report(start_run(config, out, reporting), out, reporting.console, json_)


def _refuse_fleet_options(seeds: str | None, at_once: int | None, minutes: float | None, within: float | None) -> None:
    for flag, value in (("--seeds", seeds), ("--at-once", at_once), ("--minutes", minutes), ("--within", within)):
        if value is not None:
            raise InputError(f"{flag} is for a fleet: give --fleet with it, or leave it out")


def _report(record: dict[str, Any], folder: Path, console: Console, as_json: bool) -> int:
    """Say how a run ended; return the exit status."""
    if as_json:
        print(json.dumps(record))
    if record["status"] == "stopped":
        resume = resume_command(folder)
        errors.print(f"varsmooth: stopped at step {record['steps']}; to go on: {resume}")
        return 128 + int(record["signal"])
    if not as_json:
        best = record["best"]
        say(f"best model: step {best['step']}, valid perplexity {_figure(best['valid_perplexity'])}", console)
        for found in record["results"]:
            if found["split"] == "test" and not found["tuned_temperature"]:
                say(_test_line(record, found), console)
        say(f"run: {folder}", console)
    return 0


def _test_line(record: dict[str, Any], found: dict[str, Any]) -> str:
    """Say what a prediction gives, and what it gives at the temperature and with the scales that are best on valid."""
    by = " ".join(str(word) for word in (found["average"], found["predict"]) if word)
    line = f"test perplexity {_figure(found['perplexity'])} by {by}"
    tuned = result_of(record, "test", found["predict"], tuned=True) or {}
    if "perplexity" in tuned:
        line += f", {_figure(tuned['perplexity'])} at its tuned temperature"
    if "scaled" in tuned:
        line += f", {_figure(tuned['scaled']['perplexity'])} with tuned scales"
    return line


def _figure(perplexity: float | None) -> str:
    """A record holds null where a number was not finite."""
    return "beyond all numbers" if perplexity is None else f"{perplexity:.2f}"
