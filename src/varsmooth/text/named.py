"""What is known about the data sets that have a name: what they are, where they lie, whether a copy is the standard one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from varsmooth.errors import InputError
from varsmooth.files import sha256_of
from varsmooth.text.cache import cache_folder
from varsmooth.text.reading import exists

Status = Literal["ok", "differs", "missing"]

DESCRIPTIONS = {
    "python": "docstrings of the running standard library; nothing to download",
    "synthetic": "a Markov source whose true entropy is known, for tests",
    "ptb": "Penn Treebank, the standard word-level copy; licensed, so bring your own",
    "wikitext-2": "WikiText-2, the standard word-level copy",
}


@dataclass(frozen=True)
class KnownFile:
    """The standard copy of one split: its SHA-256 and its tokens, ``<eos>`` included."""

    sha256: str
    tokens: int


@dataclass(frozen=True)
class KnownData:
    """The standard copy of a data set: its files by name and its number of types, ``<eos>`` included."""

    name: str
    types: int
    files: Mapping[str, KnownFile]


KNOWN = {
    "ptb": KnownData(
        name="ptb",
        types=10_000,
        files={
            "train.txt": KnownFile("fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 929_589),
            "valid.txt": KnownFile("c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 73_760),
            "test.txt": KnownFile("dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 82_430),
        },
    ),
    "wikitext-2": KnownData(
        name="wikitext-2",
        types=33_278,
        files={
            "train.txt": KnownFile("9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f", 2_088_628),
            "valid.txt": KnownFile("f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", 217_646),
            "test.txt": KnownFile("d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", 245_569),
        },
    ),
}


def data_root(data_dir: Path | None = None) -> Path:
    """Return the folder that holds ``ptb/`` and ``wikitext-2/``: ``data_dir``, else ``$VARSMOOTH_DATA``, else our cache."""
    if data_dir is not None:
        return Path(data_dir)
    if variable := os.environ.get("VARSMOOTH_DATA"):
        return Path(variable)
    return (cache_folder() or Path()) / "data"


def locate(name: str, data_dir: Path | None = None) -> Path:
    """Return the folder with the three files of a known data set."""
    folder = data_root(data_dir) / name
    missing = [file for file in KNOWN[name].files if not exists(folder / file)]
    if missing:
        raise InputError(
            f"{name} was not found: {folder} has no {', '.join(missing)}; point --data-dir or VARSMOOTH_DATA at the "
            f"folder that holds {name}/, or see 'varsmooth data get {name}'"
        )
    return folder


def check(known: KnownData, folder: Path) -> dict[str, Status]:
    """Compare each file of a copy with the standard one."""
    return {file: _status(folder / file, expected.sha256) for file, expected in known.files.items()}


def ptb_instructions(data_dir: Path | None = None) -> str:
    """Explain what ``get ptb`` cannot do and what to do instead."""
    files = [
        f"  {file:<10} {expected.tokens:>9,} tokens with <eos>   sha256 {expected.sha256}"
        for file, expected in KNOWN["ptb"].files.items()
    ]
    return "\n".join(
        [
            "The Penn Treebank is licensed by the Linguistic Data Consortium, so varsmooth cannot fetch it for you.",
            f"If you have the standard word-level copy ({KNOWN['ptb'].types:,} types), put its three files into",
            f"{data_root(data_dir) / 'ptb'} (or DIR/ptb, and say --data-dir DIR or VARSMOOTH_DATA=DIR):",
            *files,
            "Then 'varsmooth data check ptb' says whether they are that copy.",
        ]
    )


def _status(path: Path, sha256: str) -> Status:
    try:
        return "ok" if sha256_of(path) == sha256 else "differs"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
