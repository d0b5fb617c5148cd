"""Opening a corpus by name or from a folder."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from varsmooth.errors import InputError, nearest
from varsmooth.text.named import DESCRIPTIONS, KNOWN, locate
from varsmooth.text.python_docs import MIN_COUNT, python_texts
from varsmooth.text.reading import exists
from varsmooth.text.splits import FILES, Corpus, paths_in
from varsmooth.text.synthetic import synthetic_corpus
from varsmooth.text.vocab import Vocab

__all__ = ["Corpus", "open_corpus"]

BUILT_IN = ("python", "synthetic")


def open_corpus(
    data: str | Path,
    *,
    data_dir: Path | None = None,
    min_count: int | None = None,
    max_words: int | None = None,
    vocab: Vocab | None = None,
    max_tokens: int | None = None,
    mapped: bool | None = None,
) -> Corpus:
    """Open ``python``, ``synthetic``, ``ptb``, ``wikitext-2`` or a folder; the options are those of ``Corpus``.

    ``min_count`` is 3 for ``python`` unless given; else words that occur once become ``<unk>`` where valid or test have words
    that train lacks, and the text has no ``<unk>`` of its own. ``data_dir`` is where ``ptb`` and ``wikitext-2`` are
    looked for (else ``$VARSMOOTH_DATA``); ``mapped`` is for files alone: what is built in stays in memory.
    """
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"max_tokens must be at least 1, not {max_tokens}")
    if data == "python":
        texts, count = python_texts(), MIN_COUNT if min_count is None else min_count
        return Corpus.from_texts(texts, name="python", min_count=count, max_words=max_words, vocab=vocab, max_tokens=max_tokens)
    if data == "synthetic":
        return synthetic_corpus(min_count=min_count, max_words=max_words, vocab=vocab, max_tokens=max_tokens)
    name, folder = text_folder(data, data_dir)
    return Corpus.from_folder(
        folder, name=name, min_count=min_count, max_words=max_words, vocab=vocab, max_tokens=max_tokens, mapped=mapped
    )


def refuse_missing(data: str, data_dir: Path | None = None) -> None:
    """Refuse a data set or folder that is not there, before work that will read it."""
    if data not in BUILT_IN:
        paths_in(text_folder(data, data_dir)[1])


def text_folder(data: str | Path, data_dir: Path | None = None) -> tuple[str | None, Path]:
    """Return the name, if it has one, and the folder of a data set that is read from files."""
    if not isinstance(data, str | PathLike):
        raise InputError(f"data must be the name of a data set or a folder, got {type(data).__name__}")
    if data == "":
        raise InputError("the data's name is empty; give a data set's name or a folder")
    name = str(data) if data in KNOWN else None
    return name, locate(name, data_dir) if name else _folder(data)


def _folder(data: str | Path) -> Path:
    path = Path(data)
    if len(path.parts) > 1 or exists(path):
        return path
    raise InputError(
        f"there is no data set and no folder called {str(data)!r}{nearest(str(data), DESCRIPTIONS)}; give one of "
        f"{', '.join(DESCRIPTIONS)} or a folder that holds {', '.join(FILES)}"
    )
