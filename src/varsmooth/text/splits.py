"""A corpus: three streams of ids over one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from varsmooth.errors import InputError
from varsmooth.text.reading import exists
from varsmooth.text.streams import Encoder, Lexicon, Stream, count_words, shorten
from varsmooth.text.vocab import EOS, Vocab

SPLITS = ("train", "valid", "test")
FILES = tuple(f"{split}.txt" for split in SPLITS)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits of one text, ``<eos>`` after every line, and the SHA-256 of each split's source text.

    The constructors share their options: the vocabulary is built from train with ``min_count`` and ``max_words``
    (see ``Vocab.build``) unless ``vocab`` is given; ``max_tokens`` keeps the first whole lines of train that fit
    into it, before the vocabulary is built, and the same share of valid and test.
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
        min_count: int = 1,
        max_words: int | None = None,
        vocab: Vocab | None = None,
        max_tokens: int | None = None,
    ) -> Corpus:
        """Read ``train.txt``, ``valid.txt`` and ``test.txt`` of a folder."""
        folder = Path(path)
        _check_folder(folder)
        return cls.from_files(
            train=folder / "train.txt",
            valid=folder / "valid.txt",
            test=folder / "test.txt",
            name=name or folder.resolve().name,
            min_count=min_count,
            max_words=max_words,
            vocab=vocab,
            max_tokens=max_tokens,
        )

    @classmethod
    def from_files(
        cls,
        *,
        train: Path | str,
        valid: Path | str,
        test: Path | str,
        name: str = "files",
        min_count: int = 1,
        max_words: int | None = None,
        vocab: Vocab | None = None,
        max_tokens: int | None = None,
    ) -> Corpus:
        """Read three text files."""
        lexicon = Lexicon()
        paths = zip(SPLITS, (train, valid, test), strict=True)
        streams = {split: Stream.from_file(Path(path), lexicon) for split, path in paths}
        return cls._encode(name, streams, lexicon, min_count, max_words, vocab, max_tokens)

    @classmethod
    def from_texts(
        cls,
        texts: Mapping[str, str],
        *,
        name: str = "texts",
        min_count: int = 1,
        max_words: int | None = None,
        vocab: Vocab | None = None,
        max_tokens: int | None = None,
    ) -> Corpus:
        """Take the three splits from strings under the keys ``train``, ``valid`` and ``test``."""
        lexicon = Lexicon()
        streams = {split: Stream.from_text(texts[split], f"{name}/{split}", lexicon) for split in SPLITS}
        return cls._encode(name, streams, lexicon, min_count, max_words, vocab, max_tokens)

    @classmethod
    def _encode(
        cls,
        name: str,
        streams: Mapping[str, Stream],
        lexicon: Lexicon,
        min_count: int,
        max_words: int | None,
        vocab: Vocab | None,
        max_tokens: int | None,
    ) -> Corpus:
        if max_tokens is not None:
            streams = shorten(streams, max_tokens)
        for stream in streams.values():
            if len(stream.ids) < 2:
                raise InputError(f"{stream.source} holds a single token; a split needs at least two")
        counts = count_words(streams["train"], lexicon)
        if vocab is None:
            vocab = Vocab.build(counts, min_count, max_words)
        encoder = Encoder(lexicon, vocab, rarest=min((counts[word] for word in counts.keys() - {EOS}), default=1))
        return cls(
            name=name,
            vocab=vocab,
            train=encoder.encode(streams["train"]),
            valid=encoder.encode(streams["valid"]),
            test=encoder.encode(streams["test"]),
            checksums={split: stream.checksum for split, stream in streams.items()},
        )


def _check_folder(folder: Path) -> None:
    if not exists(folder):
        raise InputError(f"there is no folder {folder}")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder that holds {', '.join(FILES)}")
    missing = [file for file in FILES if not exists(folder / file)]
    if missing:
        raise InputError(f"{folder} has no {' and no '.join(missing)}; a data folder holds {', '.join(FILES)}")
