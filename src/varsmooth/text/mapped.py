"""Encoded texts that are kept on disk and mapped into memory: made once, checked whenever they are opened.

An entry is a folder of the cache, named by the files and options it was made from: ``train.i32``, ``valid.i32``, ``test.i32``
(raw little-endian int32), ``vocab.txt`` and ``about.json``. It is made under another name and renamed: none is ever half made.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from varsmooth.errors import InputError
from varsmooth.files import sha256_of, write_atomically
from varsmooth.text.cache import cache_folder
from varsmooth.text.chunks import default_workers
from varsmooth.text.encoding import Encoded, Request, encode, settled_signature, signature
from varsmooth.text.locks import locked
from varsmooth.text.vocab import Vocab

FORMAT = 1
ABOUT = "about.json"
VOCAB = "vocab.txt"
BUILDING = ".building-"


@dataclass(frozen=True)
class MappedText:
    """An opened entry: the ids are int32 tensors that read the disk when they are looked at, and never write to it."""

    folder: Path
    vocab: Vocab
    ids: dict[str, torch.Tensor]
    checksums: dict[str, str]
    was_there: bool
    """whether it was found in the cache"""


def open_mapped(request: Request, *, workers: int | None = None) -> MappedText:
    """Map the ids of a text, after encoding it with ``workers`` processes (one per core) if there is no sound copy of them."""
    if (own := _entry_of_its_own_words(request)) is not None:
        return own
    folder = _folder(request)
    with _locked(folder) as alone:
        found = _load(folder, request)
        if found is not None:
            return found
        with _building(folder, alone) as building:
            about = _describe(encode(request, building, workers or default_workers()), request, building)
            write_atomically(building / ABOUT, json.dumps(about, indent=1).encode())
            made = _load(building, request)  # what is mapped stays mapped under any name
            if made is None:
                raise InputError(f"{folder} was damaged, or a text has changed, as soon as it was written; try again")
            _put_in_place(building, folder)
        return replace(made, folder=folder, was_there=False)


def _entry_of_its_own_words(request: Request) -> MappedText | None:
    """Return the entry for which the words were chosen, where they are those that the request names, as a resumed run does."""
    chosen = replace(request, options=replace(request.options, vocab=None))
    if request.options.vocab is None or not (folder := _folder(chosen)).is_dir():
        return None
    with _locked(folder):
        return _load(folder, request)


def _folder(request: Request) -> Path:
    return entries_folder() / _key(request, {split: path.resolve() for split, path in request.sources.items()})


def _locked(folder: Path) -> AbstractContextManager[bool]:
    return locked(folder.with_name(folder.name + ".lock"), "waiting for another process that encodes this text")


def entries_folder() -> Path:
    """Return the folder of the cache that holds the entries and their locks."""
    folder = cache_folder()
    if folder is None:
        raise InputError(
            "a large text is encoded into the cache, and there is no place for one; set VARSMOOTH_CACHE to a folder"
        )
    return folder / "ids"


def _key(request: Request, sources: Mapping[str, Path]) -> str:
    options = request.options
    vocab = None if options.vocab is None else options.vocab.checksum
    limits = (options.min_count, options.max_words) if vocab is None else None
    told = [FORMAT, {split: str(path) for split, path in sources.items()}, limits, vocab, options.max_tokens]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]


@contextmanager
def _building(folder: Path, alone: bool) -> Iterator[Path]:
    """Give a new folder beside the entry, which is gone afterwards; those of killed processes are removed first."""
    entries = folder.parent
    if alone:
        for left in entries.glob(f"{folder.name}{BUILDING}*"):
            shutil.rmtree(left, ignore_errors=True)
    try:
        entries.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=folder.name + BUILDING, dir=entries))
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise InputError(_unwritten(entries, error)) from None


def _unwritten(entries: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{entries}: no room for the encoded text, which takes about as much as the text; "
            "free some, or set VARSMOOTH_CACHE to a folder on a larger disk"
        )
    reason = error.strerror or error
    return f"{entries}: the encoded text cannot be written ({reason}); set VARSMOOTH_CACHE to a folder that can be"


def _describe(encoded: Encoded, request: Request, building: Path) -> dict[str, Any]:
    encoded.vocab.save(building / VOCAB)
    options = request.options
    return {
        "format": FORMAT,
        "made_of": "token ids, int32 little-endian, made by varsmooth; safe to delete",
        "options": {"min_count": options.min_count, "max_words": options.max_words, "max_tokens": options.max_tokens},
        "sources": {
            split: {"path": str(path), "sha256": encoded.checksums[split], "signature": encoded.signatures[split]}
            for split, path in request.sources.items()
        },
        "vocab_checksum": encoded.vocab.checksum,
        "ids": {
            split: {
                "tokens": tokens,
                "sha256": encoded.ids_checksums[split],
                "signature": signature(building / f"{split}.i32"),
            }
            for split, tokens in encoded.tokens.items()
        },
    }


def _put_in_place(building: Path, folder: Path) -> None:
    """Rename the new entry to its name; one that was there is moved away first, and deleted."""
    old = Path(tempfile.mkdtemp(prefix=folder.name + BUILDING, dir=folder.parent))
    try:
        with suppress(FileNotFoundError):
            folder.rename(old / "entry")
        building.rename(folder)
    except OSError as error:
        # Where there are no locks another process may have been faster; its entry is as good.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _load(folder: Path, request: Request) -> MappedText | None:
    """Open an entry, or return None when there is none, when it is damaged, or when a text has changed."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        if about["format"] != FORMAT:
            return None
        known = json.dumps(about)
        sources, ids = about["sources"], about["ids"]
        if not all(_is_same(path, sources[split], settled_signature(path)) for split, path in request.sources.items()):
            return None
        paths = {split: folder / f"{split}.i32" for split in request.sources}
        if not all(_is_same(path, ids[split], signature(path)) for split, path in paths.items()):
            return None
        vocab = request.options.vocab or Vocab.load(folder / VOCAB)
        if vocab.checksum != about["vocab_checksum"]:
            return None
        tensors = {split: _map(path, ids[split]["tokens"]) for split, path in paths.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if json.dumps(about) != known:
        with suppress(OSError):
            write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())
    checksums = {split: sources[split]["sha256"] for split in request.sources}
    return MappedText(folder, vocab, tensors, checksums, was_there=True)


def _is_same(path: Path, stored: dict[str, Any], now: list[int] | None) -> bool:
    """Tell whether a file is what it was: by its size and times, and where those differ by its content, then noted anew."""
    if now is not None and stored["signature"] == now:
        return True
    if sha256_of(path) != stored["sha256"]:
        return False
    stored["signature"] = now
    return True


def _map(path: Path, tokens: int) -> torch.Tensor:
    """Map a file copy-on-write: torch wants memory that it may write to, and nothing ever reaches the file."""
    ids = np.memmap(path, dtype="<i4", mode="c")
    if ids.size != tokens:
        raise ValueError(f"{path} holds {ids.size} ids where {tokens} belong")
    return torch.from_numpy(ids)
