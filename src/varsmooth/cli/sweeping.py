"""varsmooth sweep"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from varsmooth.cli.app import FAILED, app, errors
from varsmooth.cli.options import Whole, check_page
from varsmooth.cli.output import OutputConsole, figure, lasting_console, say
from varsmooth.cli.sweep_folder import opened_board, started_store
from varsmooth.cli.sweep_processes import run_processes
from varsmooth.cli.sweep_tables import print_summary, print_table
from varsmooth.errors import InputError
from varsmooth.experiment import Corpora, Reporting
from varsmooth.fleet import any_on_gpu, number_at_once, spending
from varsmooth.report.sweep_page import write_sweep_page
from varsmooth.sweep import (
    GRACE,
    Board,
    Claims,
    SweepEnd,
    ask,
    ask_again,
    join,
    load_study,
    summarize,
    tell,
    work,
    write_winners,
)

sweep_app = App(name="sweep", help_format="markdown")
app.command(sweep_app)


@sweep_app.default
def sweep(
    study: str,
    *,
    out: Path,
    storage: str | None = None,
    at_once: Whole | None = None,
    data: str | None = None,
    set_: list[str] | None = None,
    take_back: bool = False,
    grace: Whole = GRACE,
    json_: bool = False,
    worker: Annotated[Whole | None, Parameter(show=False)] = None,
) -> int:
    """Tune several things within equal budgets, and keep what came of it.

    A study names its arms, what is tuned, the budget of every arm, and how: a grid, at random or by TPE, with or without
    giving up hopeless trials. Trials are ordinary runs in OUT/ARM. Stopped or killed, the same command goes on. In the end the
    best of each arm is trained with the study's seeds and written as a recipe, OUT/best-ARM.toml.

    Examples:

        varsmooth sweep quick --out sweeps/quick
        varsmooth sweep my-study.toml --out sweeps/mine --at-once 4
        varsmooth sweep paper-grid --out grid --storage postgresql://me@host/sweeps

    Parameters
    ----------
    study
        A .toml file, or one of the studies that come with the package: paper-grid, quick.
    out
        The folder of the sweep: its runs, and its database where no --storage is given.
    storage
        A PostgreSQL URL, so that many machines work on one study: give all of them the same command.
    at_once
        How many trials train at the same time: on a GPU in one process (8 unless given), on the CPU as that many processes (1).
    data
        Instead of the study's own data: a data set's name or a folder.
    set_
        Override a configuration key for every arm, as in `model.hidden=256`; may be given more than once.
    take_back
        Train here what was asked for with `varsmooth sweep ask` and never told of.
    grace
        With --storage: after this many seconds without a sign of life, a worker's trial is given to another.
    json_
        Print the result as JSON; progress goes to standard error.
    """
    loaded = load_study(study, _settings(data, set_))
    configs = [arm.config for arm in loaded.arms]
    number, on_gpu = number_at_once(configs, at_once), any_on_gpu(configs)
    store = started_store(out, storage, loaded, grace)
    reporting = Reporting(errors if json_ or worker is not None else lasting_console())
    if worker is not None:
        end = work(loaded, out, store, reporting, number if on_gpu else 1, take_back=take_back, parent=worker)
        return 0 if end.signal is None else 128 + end.signal
    with spending(out):
        if on_gpu or number == 1:
            end = work(loaded, out, store, reporting, number, take_back=take_back)
        else:
            board = join(loaded, store, Corpora())
            arguments = [study, "--out", str(out), *_options(storage, data, set_, take_back), "--grace", str(grace)]
            end = run_processes(arguments, number, board, reporting.console)
    return _report_end(end, out, Board(loaded, store), reporting.console, json_)


@sweep_app.command(name="ask")
def ask_(
    study: str,
    number: Whole = 1,
    *,
    out: Path,
    storage: str | None = None,
    data: str | None = None,
    set_: list[str] | None = None,
    again: bool = False,
) -> None:
    """Ask for trials that another machine will train, one that has no Optuna and no database.

    Prints the list as JSON, for `varsmooth train --fleet`. What came of them is told with `varsmooth sweep tell`.

    Examples:

        varsmooth sweep ask quick 8 --out sweeps/quick > trials.json
        varsmooth train --fleet trials.json --out RUNS
        varsmooth sweep tell RUNS --out sweeps/quick

    Parameters
    ----------
    study
        A .toml file, or one of the studies that come with the package.
    number
        How many trials; fewer come where the budget or the study's order leaves fewer.
    out
        The folder of the sweep.
    storage
        The PostgreSQL URL of the study, where it has one.
    data
        Instead of the study's own data: a data set's name or a folder.
    set_
        Override a configuration key for every arm; the same as for every other worker of the study.
    again
        Print once more the trials that were asked for and not told of, instead of new ones.
    """
    loaded = load_study(study, _settings(data, set_))
    board = join(loaded, started_store(out, storage, loaded, GRACE), Corpora())
    trials = ask_again(board) if again else ask(board, Claims(out, board.store.folder), number)
    if not trials:
        raise InputError(f"there is no trial to ask for: the study {loaded.name!r} is through, or others work on what is left")
    print(json.dumps(trials, indent=1))


@sweep_app.command(name="tell")
def tell_(*runs: Path, out: Path, storage: str | None = None, study: str | None = None, json_: bool = False) -> None:
    """Tell what came of trials that were asked for. A run counts once, however often it is told.

    Example:

        varsmooth sweep tell RUNS --out sweeps/quick

    Parameters
    ----------
    runs
        The folder that `varsmooth train --fleet` made, or run folders in it.
    out
        The folder of the sweep.
    storage
        The PostgreSQL URL of the study, where it has one.
    study
        The study's name, where a database holds several.
    json_
        Print what was made of each run as JSON.
    """
    board = opened_board(out, storage, study)
    told = tell(board, runs)
    write_winners(board, out)
    if json_:
        print(json.dumps([entry.__dict__ for entry in told]))
        return
    print_table(
        ("run", "outcome", "valid perplexity", "reason"),
        [(entry.run, entry.outcome, figure(entry.valid_perplexity), entry.reason or "") for entry in told],
    )
    if any(entry.outcome == "unfinished" for entry in told):
        errors.print("varsmooth: some runs have not finished: go on with varsmooth train --resume, and tell again")


@sweep_app.command
def show(
    where: str,
    *,
    storage: str | None = None,
    study: str | None = None,
    report: Path | None = None,
    force: bool = False,
    json_: bool = False,
) -> None:
    """Show what came of a sweep, also while it runs.

    For each arm: the budget and what was used of it, the best configuration, its seeds, and which parameters mattered.

    Examples:

        varsmooth sweep show sweeps/quick
        varsmooth sweep show sweeps/quick --report sweep.html
        varsmooth sweep show postgresql://me@host/sweeps --study paper-grid --json

    Parameters
    ----------
    where
        The folder of a sweep, or the URL of its database.
    storage
        The URL of a folder's database, where it has a password, which the folder does not keep.
    study
        The study's name, where a database holds several.
    report
        Also write a page with plots of perplexity over trials and over minutes; its name ends in .html.
    force
        Replace that page where it exists.
    json_
        Print everything as JSON.
    """
    if report is not None:
        check_page("--report", report, force=force)
    is_url = "://" in where
    board = opened_board(None, where, study) if is_url else opened_board(Path(where), storage, study)
    found = summarize(board, None if is_url else Path(where))
    if report is not None:
        write_sweep_page(report, found)
    if json_:
        print(json.dumps({**found.as_json(), "page": report and str(report)}))
        return
    print_summary(found, OutputConsole())
    if report is not None:
        say(f"page: {report}")


def _settings(data: str | None, settings: list[str] | None) -> list[str]:
    return [*([f"data.name={json.dumps(data, ensure_ascii=False)}"] if data is not None else []), *(settings or [])]


def _options(storage: str | None, data: str | None, settings: list[str] | None, take_back: bool) -> list[str]:
    """The command line once more, for the processes of this one."""
    found = [*(["--storage", storage] if storage else []), *([] if data is None else ["--data", data])]
    return [*found, *(part for each in settings or [] for part in ("--set", each)), *(["--take-back"] if take_back else [])]


def _report_end(end: SweepEnd, out: Path, board: Board, console: Console, as_json: bool) -> int:
    if end.signal is not None:
        errors.print("varsmooth: stopped; the same command goes on")
        return 128 + end.signal
    winners = write_winners(board, out)
    found = summarize(board, out)
    if as_json:
        print(json.dumps({**found.as_json(), "recipes": {arm: str(path) for arm, path in winners.items()}}))
    else:
        print_summary(found, console)
        for path in winners.values():
            say(f"best: varsmooth train --recipe {shlex.quote(str(path))} --out RUN", console)
    if end.asked:
        errors.print(
            f"varsmooth: {end.asked} trials were asked for elsewhere and not told of yet: "
            f"varsmooth sweep tell RUNS --out {out}, or train them here with --take-back"
        )
        return FAILED
    if not all(arm.best for arm in found.arms):
        errors.print("varsmooth: an arm has no trial that was trained to the end; varsmooth sweep show --json says why")
        return FAILED
    return 0
