"""A corpus: three streams of ids over one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from varsmooth.errors import InputError, nearest
from varsmooth.text.encoding import Request
from varsmooth.text.mapped import open_mapped
from varsmooth.text.named import DESCRIPTIONS
from varsmooth.text.options import Options
from varsmooth.text.reading import exists, size_of
from varsmooth.text.streams import Encoder, Lexicon, Stream
from varsmooth.text.vocab import Vocab

SPLITS = ("train", "valid", "test")
FILES = tuple(f"{split}.txt" for split in SPLITS)
MAPPED_ABOVE = 64 << 20
"""Bytes of text above which ids are mapped: in memory they take up to four times the size of the text while they are made."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits of one text, ``<eos>`` after every line, and the SHA-256 of each split's source text.

    The constructors share their options: the vocabulary is built from train with ``min_count`` and ``max_words``
    (see ``Vocab.covering``) unless ``vocab`` is given; ``max_tokens`` keeps the first whole lines of train that fit
    into it, before the vocabulary is built, and the same share of valid and test.

    Ids are int64 tensors in memory. Those of large files are int32 tensors that are mapped from the cache (``text/mapped.py``),
    where several processes have put them: ``mapped`` says whether, and None means above ``MAPPED_ABOVE`` bytes.
    """

    name: str
    vocab: Vocab
    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor
    checksums: dict[str, str]

    @classmethod
    def from_folder(
        cls,
        path: Path | str,
        *,
        name: str | None = None,
        min_count: int | None = None,
        max_words: int | None = None,
        vocab: Vocab | None = None,
        max_tokens: int | None = None,
        mapped: bool | None = None,
    ) -> Corpus:
        """Read ``train.txt``, ``valid.txt`` and ``test.txt`` of a folder."""
        paths = paths_in(Path(path))
        options = Options(min_count, max_words, vocab, max_tokens)
        return cls._read(name or Path(path).resolve().name, paths, options, mapped)

    @classmethod
    def from_files(
        cls,
        *,
        train: Path | str,
        valid: Path | str,
        test: Path | str,
        name: str = "files",
        min_count: int | None = None,
        max_words: int | None = None,
        vocab: Vocab | None = None,
        max_tokens: int | None = None,
        mapped: bool | None = None,
    ) -> Corpus:
        """Read three text files."""
        paths = {split: Path(path) for split, path in zip(SPLITS, (train, valid, test), strict=True)}
        return cls._read(name, paths, Options(min_count, max_words, vocab, max_tokens), mapped)

    @classmethod
    def from_texts(
        cls,
        texts: Mapping[str, str],
        *,
        name: str = "texts",
        min_count: int | None = None,
        max_words: int | None = None,
        vocab: Vocab | None = None,
        max_tokens: int | None = None,
    ) -> Corpus:
        """Take the three splits from strings under the keys ``train``, ``valid`` and ``test``."""
        lexicon = Lexicon()
        streams = {split: Stream.from_text(texts[split], f"{name}/{split}", lexicon) for split in SPLITS}
        return cls._encode(name, streams, Options(min_count, max_words, vocab, max_tokens))

    @classmethod
    def _read(cls, name: str, paths: Mapping[str, Path], options: Options, mapped: bool | None) -> Corpus:
        if mapped if mapped is not None else sum(map(size_of, paths.values())) > MAPPED_ABOVE:
            found = open_mapped(Request(paths, options))
            return cls(name, found.vocab, **found.ids, checksums=found.checksums)
        lexicon = Lexicon()
        streams = {split: Stream.from_file(path, lexicon) for split, path in paths.items()}
        return cls._encode(name, streams, options)

    @classmethod
    def _encode(cls, name: str, streams: Mapping[str, Stream], options: Options) -> Corpus:
        streams = options.shorten(streams)
        vocab, rarest = options.choose_vocab(streams)
        encoder = Encoder(streams["train"].lexicon, vocab, rarest)
        return cls(
            name=name,
            vocab=vocab,
            train=encoder.encode(streams["train"]),
            valid=encoder.encode(streams["valid"]),
            test=encoder.encode(streams["test"]),
            checksums={split: stream.checksum for split, stream in streams.items()},
        )


def encode_file(path: Path, vocab: Vocab) -> torch.Tensor:
    """Return one text file as a stream of ids, ``<eos>`` after every line."""
    lexicon = Lexicon()
    stream = Stream.from_file(path, lexicon)
    return Encoder(lexicon, vocab, rarest=1).encode(stream)


def paths_in(folder: Path) -> dict[str, Path]:
    """Return the files of the three splits; refuse a folder that lacks one."""
    if not exists(folder):
        raise InputError(f"there is no folder {folder}{nearest(folder.name, DESCRIPTIONS)}")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder that holds {', '.join(FILES)}")
    missing = [file for file in FILES if not exists(folder / file)]
    if missing:
        raise InputError(f"{folder} has no {' and no '.join(missing)}; a data folder holds {', '.join(FILES)}")
    return {split: folder / file for split, file in zip(SPLITS, FILES, strict=True)}
