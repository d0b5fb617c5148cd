"""varsmooth stats and varsmooth data"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App
from rich import box
from rich.table import Table
from rich.text import Text

from varsmooth.cli.app import BAD_INPUT, app, errors
from varsmooth.cli.options import Whole, check_picture
from varsmooth.cli.output import OutputConsole, say
from varsmooth.errors import InputError, nearest
from varsmooth.report.corpus import corpus_statistics, statistics_tables
from varsmooth.report.corpus_plot import write_corpus_picture
from varsmooth.text import open_corpus
from varsmooth.text.corpus import text_folder
from varsmooth.text.hub import fetch_wikitext2
from varsmooth.text.named import DESCRIPTIONS, KNOWN, check, data_root, ptb_instructions
from varsmooth.text.prepared import cached_entries, prepare, remove_entries

BUILT_IN = "built in"

STATUS = {
    "ok": "standard copy",
    "differs": "differs from the standard copy",
    "incomplete": "incomplete",
    "missing": "missing",
    BUILT_IN: BUILT_IN,
}
DATA_HELP = """List, fetch and check the data sets that have a name, and encode large texts.

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
    json_: bool = False,
    plot: Path | None = None,
    force: bool = False,
    data_dir: Path | None = None,
    min_count: Whole | None = None,
    max_words: Whole | None = None,
    max_tokens: Whole | None = None,
) -> None:
    """Show what a corpus looks like to smoothing.

    Size and vocabulary, the Kneser-Ney rates of rare and frequent words, and the words whose Kneser-Ney mass differs most from
    their unigram mass: those that are frequent but follow only a few words, as Francisco does, and those that follow many.

    A large text is encoded into the cache the first time (`varsmooth data prepare`), and where its distinct bigrams might not
    fit into memory they are counted on disk (needs the `data` extra).

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
    force
        Replace the picture where it exists.
    data_dir
        The folder that holds ptb/ and wikitext-2/, instead of the one named by `VARSMOOTH_DATA`.
    min_count
        Words that occur less often become `<unk>`; unless given 3 for python, else 2 where valid or test have words that
        train lacks and the text has no `<unk>` of its own, else 1.
    max_words
        The largest vocabulary, `<eos>` and `<unk>` included; rarer words become `<unk>`.
    max_tokens
        Use only the first lines of train that fit into this many tokens, and the same share of the other splits.
    """
    if plot is not None:
        check_picture("--plot", plot, force=force)
    corpus = open_corpus(data, data_dir=data_dir, min_count=min_count, max_words=max_words, max_tokens=max_tokens)
    statistics = corpus_statistics(corpus, gamma)
    if plot is not None:
        write_corpus_picture(plot, statistics)
    if json_:
        print(json.dumps(statistics.as_json()))
        return
    for table in statistics_tables(statistics):
        OutputConsole().print(table)
    if plot is not None:
        say(f"picture: {plot}")


@data_app.command(name="list")
def list_(*, data_dir: Path | None = None, json_: bool = False) -> None:
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
    say("any folder with train.txt, valid.txt and test.txt can be given instead of a name")


@data_app.command(name="check")
def check_(
    name: str | None = None,
    /,
    *,
    all_: bool = False,
    data_dir: Path | None = None,
    json_: bool = False,
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
        say(f"{name} is built in: there is nothing to get")
        return 0
    folder = data_root(data_dir) / name
    if _examined(name, data_dir)["status"] == "ok":
        say(f"{name} is there already: {folder}")
        return 0
    if name == "ptb":
        print(ptb_instructions(data_dir))
        return BAD_INPUT
    errors.print(f"fetching {name} from the Hugging Face hub into {folder} ...")
    fetch_wikitext2(folder)
    say(f"{name} is the standard copy: {folder}")
    return 0


@data_app.command(name="prepare")
def prepare_(
    data: str,
    /,
    *,
    data_dir: Path | None = None,
    min_count: Whole | None = None,
    max_words: Whole | None = None,
    max_tokens: Whole | None = None,
    workers: Whole | None = None,
    json_: bool = False,
) -> None:
    """Encode a large text ahead of training.

    Texts above 64 MB are encoded by several processes, once for each choice of the options below, and then read from the disk
    as they are needed; this does it before the first `train` or `stats` would, as on a cluster where many start at once. The
    cache is `VARSMOOTH_CACHE`, else `~/.cache/varsmooth`; it needs about as much room as the text.

    Examples:

        varsmooth data prepare my-text/
        varsmooth data prepare my-text/ --min-count 3 --workers 8 --json

    Parameters
    ----------
    data
        A folder with train.txt, valid.txt and test.txt, or the name of a data set that is read from files.
    data_dir
        The folder that holds ptb/ and wikitext-2/, instead of the one named by `VARSMOOTH_DATA`.
    min_count
        Words that occur less often become `<unk>`; unless given 2 where valid or test have words that train lacks and the
        text has no `<unk>` of its own, else 1.
    max_words
        The largest vocabulary, `<eos>` and `<unk>` included; rarer words become `<unk>`.
    max_tokens
        Use only the first lines of train that fit into this many tokens, and the same share of the other splits.
    workers
        Processes that read the text; one per core unless given.
    json_
        Print the figures as JSON.
    """
    if data in DESCRIPTIONS and data not in KNOWN:
        raise InputError(f"{data} is built in: there is nothing to prepare")
    _, folder = text_folder(data, data_dir)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    begin = time.perf_counter()
    found = prepare(folder, min_count=min_count, max_words=max_words, max_tokens=max_tokens, workers=workers)
    seconds = time.perf_counter() - begin
    figures: dict[str, Any] = {"data": data, "encoded": found is not None}
    if found is not None:
        figures |= {
            "folder": str(found.folder),
            "was_there": found.was_there,
            "vocab_size": len(found.vocab),
            "tokens": {split: ids.numel() for split, ids in found.ids.items()},
            "checksums": found.checksums,
            "seconds": round(seconds, 3),
        }
    if json_:
        print(json.dumps(figures))
    elif found is None:
        say(f"{folder} is small: it is read anew every time, and there is nothing to prepare")
    else:
        sizes = ", ".join(f"{split} {ids.numel():,}" for split, ids in found.ids.items())
        say(f"{folder}: {len(found.vocab):,} words in the vocabulary; tokens: {sizes}")
        say(f"{'was encoded already' if found.was_there else f'encoded in {seconds:.1f} s'}: {found.folder}")


@data_app.command(name="cache")
def cache_(*, clear: bool = False, json_: bool = False) -> None:
    """Show or delete the encoded texts that are kept on disk.

    Examples:

        varsmooth data cache
        varsmooth data cache --clear

    Parameters
    ----------
    clear
        Delete them; they are made again when they are needed.
    json_
        Print the list as JSON.
    """
    entries = remove_entries() if clear else cached_entries()
    freed = sum(entry.bytes for entry in entries) if clear else 0
    if json_:
        listed = [{"folder": str(e.folder), "bytes": e.bytes, "tokens": e.tokens, "sources": dict(e.sources)} for e in entries]
        print(json.dumps({"entries": listed, "cleared": clear, "freed_bytes": freed}))
        return
    if clear:
        say(f"deleted {len(entries)} encoded texts, {freed / 1e6:,.1f} MB")
        return
    rows = [
        (
            entry.sources.get("train", "damaged or unfinished"),
            f"{entry.tokens:,}",
            f"{entry.bytes / 1e6:,.1f}",
            entry.folder.name,
        )
        for entry in entries
    ]
    _print_table(("text", "tokens", "MB", "entry"), rows)
    say(f"{len(entries)} encoded texts, {sum(entry.bytes for entry in entries) / 1e6:,.1f} MB")


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
            say(f"{item['name']} {place} {item['folder']}")


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
    OutputConsole().print(table)
