"""Fetching WikiText-2 from the Hugging Face hub, with the ``hub`` extra."""

from __future__ import annotations

import hashlib
import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from varsmooth.errors import InputError
from varsmooth.files import check_place, write_atomically
from varsmooth.text.named import KNOWN, KnownData, check

REPOSITORY = "Salesforce/wikitext"
PARQUET = {
    "train.txt": "wikitext-2-v1/train-00000-of-00001.parquet",
    "valid.txt": "wikitext-2-v1/validation-00000-of-00001.parquet",
    "test.txt": "wikitext-2-v1/test-00000-of-00001.parquet",
}


def fetch_wikitext2(target: Path, *, endpoint: str | None = None, known: KnownData = KNOWN["wikitext-2"]) -> dict[str, Path]:
    """Write the three files of the standard copy into ``target`` and return where they are.

    A copy that is already there is left alone; nothing is written unless all three files are the standard ones.
    """
    check_place(target / "train.txt", "--data-dir")
    statuses = check(known, target)
    paths = {file: target / file for file in statuses}
    differing = [str(paths[file]) for file, status in statuses.items() if status == "differs"]
    if differing:
        raise InputError(f"{differing[0]} is there already and is not the standard copy; move it away first")
    missing = [file for file, status in statuses.items() if status == "missing"]
    texts = _download(missing, endpoint) if missing else {}
    for file, text in texts.items():
        if hashlib.sha256(text).hexdigest() != known.files[file].sha256:
            raise InputError(f"{PARQUET[file]} of {REPOSITORY} does not give the standard {file}; nothing was written")
    for file, text in texts.items():
        _write(paths[file], text)
    return paths


def _download(files: list[str], endpoint: str | None) -> dict[str, bytes]:
    hub, parquet = _extra("huggingface_hub"), _extra("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as scratch:
        return {file: _rows_to_text(parquet, _take(hub, PARQUET[file], scratch, endpoint)) for file in files}


def _take(hub: ModuleType, file: str, scratch: str, endpoint: str | None) -> str:
    try:
        with _without_warnings():
            path: str = hub.hf_hub_download(
                REPOSITORY, file, repo_type="dataset", local_dir=scratch, endpoint=endpoint, token=False
            )
    except Exception as error:  # the client raises its own, its transport's and the system's errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{file} of {REPOSITORY} could not be fetched from the hub: {reason}") from error
    return path


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep the client from telling of every retry: what was wrong is said once, in the end."""
    logging = _extra("huggingface_hub.utils.logging")
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _rows_to_text(parquet: ModuleType, path: str) -> bytes:
    """Undo what the hub's copy does to lines: blank ones, a single space in the standard copy, are stored as ``""``."""
    try:
        rows: list[str | None] = parquet.read_table(path, columns=["text"]).column("text").to_pylist()
        return "".join(row or " \n" for row in rows).encode()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"what the hub gave for {Path(path).name} is not a table of lines of text") from error


def _extra(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"fetching needs {package}: pip install 'varsmooth[hub]'") from None


def _write(path: Path, text: bytes) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
