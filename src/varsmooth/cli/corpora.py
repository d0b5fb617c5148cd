"""varsmooth stats and varsmooth data"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varsmooth.cli.app import BAD_INPUT, app, errors
from varsmooth.errors import InputError, nearest
from varsmooth.report.corpus import corpus_statistics, statistics_tables
from varsmooth.report.corpus_plot import write_corpus_picture
from varsmooth.text import open_corpus
from varsmooth.text.hub import fetch_wikitext2
from varsmooth.text.named import DESCRIPTIONS, KNOWN, check, data_root, ptb_instructions

BUILT_IN = "built in"
AsJson = Annotated[bool, Parameter(name="--json", negative="")]

STATUS = {
    "ok": "standard copy",
    "differs": "differs from the standard copy",
    "incomplete": "incomplete",
    "missing": "missing",
    BUILT_IN: BUILT_IN,
}
DATA_HELP = """List, fetch and check the data sets that have a name.

For example:

    varsmooth data list
"""

data_app = App(name="data", help=DATA_HELP, help_format="markdown")
app.command(data_app)


@app.command
def stats(
    data: str,
    *,
    gamma: float = 0.2,
    json_: AsJson = False,
    plot: Path | None = None,
    data_dir: Path | None = None,
    min_count: int | None = None,
    max_words: int | None = None,
    max_tokens: int | None = None,
) -> None:
    """Show what a corpus looks like to smoothing.

    Size and vocabulary, the Kneser-Ney rates of rare and frequent words, and the words whose Kneser-Ney mass differs most from
    their unigram mass: those that are frequent but follow only a few words, as Francisco does, and those that follow many.

    Examples:

        varsmooth stats python
        varsmooth stats my-text/ --min-count 2 --plot stats.png
        varsmooth stats wikitext-2 --data-dir corpora --json

    Parameters
    ----------
    data
        A data set's name (`varsmooth data list`) or a folder with train.txt, valid.txt and test.txt.
    gamma
        The strength of smoothing, from 0 to 1.
    json_
        Print the figures as JSON.
    plot
        Also draw them into this PNG file (needs the `plot` extra).
    data_dir
        The folder that holds ptb/ and wikitext-2/, instead of the one named by `VARSMOOTH_DATA`.
    min_count
        Words that occur less often become `<unk>`; 1 unless given, 3 for python.
    max_words
        The largest vocabulary, `<eos>` and `<unk>` included; rarer words become `<unk>`.
    max_tokens
        Use only the first lines of train that fit into this many tokens, and the same share of the other splits.
    """
    corpus = open_corpus(data, data_dir=data_dir, min_count=min_count, max_words=max_words, max_tokens=max_tokens)
    statistics = corpus_statistics(corpus, gamma)
    if plot is not None:
        write_corpus_picture(plot, statistics)
    if json_:
        print(json.dumps(statistics.as_json()))
        return
    for table in statistics_tables(statistics):
        Console().print(table)
    if plot is not None:
        _say(f"picture: {plot}")


@data_app.command(name="list")
def list_(*, data_dir: Path | None = None, json_: AsJson = False) -> None:
    """List the data sets that have a name, and where they are.

    Example:

        varsmooth data list

    Parameters
    ----------
    data_dir
        The folder that holds ptb/ and wikitext-2/, instead of the one named by `VARSMOOTH_DATA`.
    json_
        Print the list as JSON.
    """
    found = [_examined(name, data_dir) for name in DESCRIPTIONS]
    if json_:
        print(json.dumps(found))
        return
    rows = [(item["name"], STATUS[item["status"]], item["description"]) for item in found]
    _print_table(("name", "status", "what it is"), rows)
    _print_folders(found)
    _say("any folder with train.txt, valid.txt and test.txt can be given instead of a name")


@data_app.command(name="check")
def check_(
    name: str | None = None,
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="")] = False,
    data_dir: Path | None = None,
    json_: AsJson = False,
) -> None:
    """Compare a data set with its standard copy by SHA-256.

    Leaves with status 0 if every file is the standard one, and with 2 if one differs or is missing.

    Examples:

        varsmooth data check ptb
        varsmooth data check --all --data-dir corpora

    Parameters
    ----------
    name
        The data set (`varsmooth data list`).
    all_
        Check all of them.
    data_dir
        The folder that holds ptb/ and wikitext-2/, instead of the one named by `VARSMOOTH_DATA`.
    json_
        Print the outcome as JSON.
    """
    if (name is None) != all_:
        raise InputError("name one data set to check, or say --all" + (", not both" if all_ else ""))
    names = list(DESCRIPTIONS) if name is None else [_known(name)]
    found = [_examined(each, data_dir) for each in names]
    if json_:
        print(json.dumps(found))
    else:
        _print_checks(found)
    _refuse_bad(found)


@data_app.command
def get(name: str, /, *, data_dir: Path | None = None) -> int:
    """Fetch a data set, or say how to come by it.

    wikitext-2 comes from the Hugging Face hub (needs the `hub` extra) and is checked; ptb is licensed and cannot be fetched.

    Example:

        varsmooth data get wikitext-2

    Parameters
    ----------
    name
        The data set (`varsmooth data list`).
    data_dir
        Put it into a folder below this one, instead of the one named by `VARSMOOTH_DATA`.
    """
    name = _known(name)
    if name not in KNOWN:
        _say(f"{name} is built in: there is nothing to get")
        return 0
    folder = data_root(data_dir) / name
    if _examined(name, data_dir)["status"] == "ok":
        _say(f"{name} is there already: {folder}")
        return 0
    if name == "ptb":
        print(ptb_instructions(data_dir))
        return BAD_INPUT
    errors.print(f"fetching {name} from the Hugging Face hub into {folder} ...")
    fetch_wikitext2(folder)
    _say(f"{name} is the standard copy: {folder}")
    return 0


def _examined(name: str, data_dir: Path | None) -> dict[str, Any]:
    """Return what is known of a data set: its status is ``built in``, ``ok``, ``differs``, ``incomplete`` or ``missing``."""
    description = DESCRIPTIONS[name]
    if name not in KNOWN:
        return {"name": name, "description": description, "status": BUILT_IN, "folder": None, "files": {}}
    folder = data_root(data_dir) / name
    statuses = check(KNOWN[name], folder)
    files = {
        file: {"status": statuses[file], "sha256": expected.sha256, "tokens": expected.tokens}
        for file, expected in KNOWN[name].files.items()
    }
    status = _overall(list(statuses.values()))
    return {"name": name, "description": description, "status": status, "folder": str(folder), "files": files}


def _overall(statuses: Sequence[str]) -> str:
    if "differs" in statuses:
        return "differs"
    if "missing" in statuses:
        return "incomplete" if "ok" in statuses else "missing"
    return "ok"


def _print_checks(found: Sequence[dict[str, Any]]) -> None:
    rows = []
    for item in found:
        files = item["files"] or {"-": {"status": BUILT_IN}}
        rows += [(item["name"], file, STATUS[entry["status"]]) for file, entry in files.items()]
    _print_table(("name", "file", "status"), rows)
    _print_folders(found)


def _print_folders(found: Iterable[dict[str, Any]]) -> None:
    for item in found:
        if item["folder"]:
            place = "was not found in" if item["status"] == "missing" else "is in"
            _say(f"{item['name']} {place} {item['folder']}")


def _refuse_bad(found: Iterable[dict[str, Any]]) -> None:
    """Name every file that is not the standard one."""
    troubles = []
    for item in found:
        for wrong, words in (("differs", "not the standard copy"), ("missing", "missing")):
            files = [file for file, entry in item["files"].items() if entry["status"] == wrong]
            if files:
                verb = "is" if len(files) == 1 else "are"
                see = f"see 'varsmooth data get {item['name']}'"
                troubles.append(f"{item['folder']}: {', '.join(files)} {verb} {words}, {see}")
    if troubles:
        raise InputError("; ".join(troubles))


def _known(name: str) -> str:
    if name not in DESCRIPTIONS:
        raise InputError(f"there is no data set called {name!r}; known: {', '.join(DESCRIPTIONS)}{nearest(name, DESCRIPTIONS)}")
    return name


def _print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _say(message: str) -> None:
    Console().print(message, highlight=False, markup=False, soft_wrap=True)
