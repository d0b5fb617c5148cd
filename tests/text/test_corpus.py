from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.errors import InputError
from varsmooth.text import EOS, UNK, Corpus, Vocab, open_corpus
from varsmooth.text.named import KNOWN

MakeFolder = Callable[..., Path]
OrdinaryUser = Callable[[], AbstractContextManager[None]]


def words(corpus: Corpus, split: str) -> str:
    return " ".join(corpus.vocab.decode(getattr(corpus, split)))


def test_from_folder(make_folder: MakeFolder) -> None:
    folder = make_folder()
    corpus = Corpus.from_folder(folder)
    assert corpus.name == "data"
    assert words(corpus, "train") == "the cat sat <eos> on the mat <eos>"
    assert words(corpus, "valid") == "the mat sat <eos>"
    assert words(corpus, "test") == "on the cat <eos>"
    assert corpus.vocab.words == (EOS, "the", "cat", "mat", "on", "sat")
    assert corpus.train.dtype == torch.int64
    assert corpus.train.shape == (8,)
    assert corpus.checksums["test"] == hashlib.sha256((folder / "test.txt").read_bytes()).hexdigest()


def test_from_files(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    (folder / "train.txt").rename(tmp_path / "long.txt")
    corpus = Corpus.from_files(train=tmp_path / "long.txt", valid=folder / "valid.txt", test=folder / "test.txt", name="mine")
    assert corpus.name == "mine"
    assert len(corpus.train) == 8


def test_blank_lines_bom_and_crlf(make_folder: MakeFolder) -> None:
    corpus = Corpus.from_folder(make_folder(train=b"\xef\xbb\xbfthe cat sat\r\n \r\non the mat\r\n\r\n"))
    assert words(corpus, "train") == "the cat sat <eos> <eos> on the mat <eos> <eos>"
    assert "\ufeffthe" not in corpus.vocab


def test_unseen_words_become_unk(make_folder: MakeFolder) -> None:
    corpus = Corpus.from_folder(make_folder(valid="the zebra sat\n"), min_count=2)
    assert words(corpus, "valid") == "the <unk> <unk> <eos>"
    assert words(corpus, "train") == "the <unk> <unk> <eos> <unk> the <unk> <eos>"


def test_unk_written_in_train_is_enough(make_folder: MakeFolder) -> None:
    corpus = Corpus.from_folder(make_folder(train="the <unk> sat on cat mat\n", valid="the zebra\n"))
    assert words(corpus, "valid") == "the <unk> <eos>"


@pytest.mark.parametrize("mapped", [False, True])
def test_words_seen_once_become_unk_where_other_splits_need_one(make_folder: MakeFolder, mapped: bool) -> None:
    corpus = Corpus.from_folder(make_folder(valid="the zebra sat\n"), mapped=mapped)
    assert words(corpus, "valid") == "the <unk> <unk> <eos>"
    assert words(corpus, "train") == "the <unk> <unk> <eos> <unk> the <unk> <eos>"
    whole = Corpus.from_folder(make_folder(valid="the mat sat\n"), mapped=mapped)
    assert UNK not in whole.vocab, "nothing is missing"


@pytest.mark.parametrize("options", [{"min_count": 1}, {"train": "the cat sat on mat\n" * 2}])
def test_unseen_word_without_unk_is_named(make_folder: MakeFolder, options: dict[str, Any]) -> None:
    minimum = {key: options[key] for key in options if key == "min_count"}
    folder = make_folder(valid="the cat\n\nzebra aardvark\n", **{key: options[key] for key in options if key == "train"})
    with pytest.raises(InputError) as caught:
        Corpus.from_folder(folder, **minimum)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'valid.txt'}, line 3: the word 'zebra' is not in the vocabulary")
    assert f"--set data.min_count={2 if minimum else 3}" in message
    assert "add the word to the training text" in message


def test_the_advice_about_min_count_works(make_folder: MakeFolder) -> None:
    folder = make_folder(train="a b a b\n" * 2, valid="zebra\n", test="a b\n")
    with pytest.raises(InputError, match="min_count of 5"):
        Corpus.from_folder(folder, min_count=2)
    assert UNK in Corpus.from_folder(folder, min_count=5).vocab


def test_given_vocabulary_is_used(make_folder: MakeFolder) -> None:
    vocab = Vocab((EOS, "the", UNK, "cat"))
    corpus = Corpus.from_folder(make_folder(), vocab=vocab)
    assert corpus.vocab is vocab
    assert corpus.train.tolist() == [1, 3, 2, 0, 2, 1, 2, 0]


def test_given_vocabulary_that_lacks_a_word(make_folder: MakeFolder) -> None:
    with pytest.raises(InputError, match=r"train\.txt, line 1: the word 'sat'"):
        Corpus.from_folder(make_folder(), vocab=Vocab((EOS, "the", "cat")))


def test_max_tokens_keeps_whole_lines_before_the_vocabulary_is_built(make_folder: MakeFolder) -> None:
    folder = make_folder(train="a b\n" * 50 + "z z\n" * 50, valid="a b\n" * 20, test="a b a\n" * 2)
    corpus = open_corpus(str(folder), max_tokens=31)
    assert words(corpus, "train") == " ".join(["a b <eos>"] * 10)
    assert "z" not in corpus.vocab
    assert words(corpus, "valid") == " ".join(["a b <eos>"] * 2)
    assert words(corpus, "test") == "a b a <eos>"


@pytest.mark.parametrize("mapped", [False, True])
def test_max_tokens_leaves_every_split_two_tokens(make_folder: MakeFolder, mapped: bool) -> None:
    folder = make_folder(train="a b\n" * 50, valid="\na b\na\n", test="\n\na\n")
    corpus = open_corpus(str(folder), max_tokens=3, mapped=mapped)
    assert [words(corpus, split) for split in ("train", "valid", "test")] == ["a b <eos>", "<eos> a b <eos>", "<eos> <eos>"]


def test_max_tokens_larger_than_the_text_changes_nothing(make_folder: MakeFolder) -> None:
    folder = make_folder()
    assert len(open_corpus(str(folder), max_tokens=8).valid) == 4
    assert len(open_corpus(str(folder), max_tokens=9).train) == 8


def test_max_tokens_too_small(make_folder: MakeFolder) -> None:
    with pytest.raises(InputError, match=r"max_tokens 3 leaves nothing .* has 4 tokens"):
        open_corpus(str(make_folder()), max_tokens=3)
    with pytest.raises(InputError, match=r"train\.txt holds a single token"):
        open_corpus(str(make_folder(train="\nthe cat\n")), max_tokens=1)
    with pytest.raises(InputError, match="max_tokens must be at least 1"):
        open_corpus("synthetic", max_tokens=0)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data has no {split}.txt; a data folder holds train.txt, valid.txt, test.txt"),
        (b"", "{split}.txt is empty"),
        (b"the \xff\n", "{split}.txt is not UTF-8 (0xff at byte 4, in line 1)"),
        (b"the\0cat\n", "{split}.txt holds binary data (a NUL byte at byte 3, in line 1)"),
        (b"\n", "{split}.txt is empty; it must hold at least one line of text"),
        (b"\n \t\n" * 9 + b" ", "{split}.txt is empty; it must hold at least one line of text"),
    ],
)
def test_bad_splits(make_folder: MakeFolder, split: str, data: bytes | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Corpus.from_folder(make_folder(**{split: data}))
    assert message.format(split=split) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folder_where_a_split_belongs(make_folder: MakeFolder) -> None:
    folder = make_folder(test=None)
    (folder / "test.txt").mkdir()
    with pytest.raises(InputError, match=r"test\.txt is a folder where a text file belongs"):
        Corpus.from_folder(folder)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        open_corpus(str(tmp_path / "nowhere"))


def test_file_where_a_folder_belongs(make_folder: MakeFolder) -> None:
    with pytest.raises(InputError, match=r"train\.txt is a file; give a folder that holds train\.txt"):
        open_corpus(str(make_folder() / "train.txt"))


@pytest.mark.parametrize("name", ["x" * 5000, "x\0y"])
def test_name_the_system_refuses(name: str) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        open_corpus(name)


def test_permissions_of_a_split_and_of_the_folder(
    open_folder: Path, ordinary_user: OrdinaryUser, make_folder: MakeFolder
) -> None:
    folder = make_folder().rename(open_folder / "data")
    with ordinary_user():
        assert len(Corpus.from_folder(folder).train) == 8
    (folder / "valid.txt").chmod(0o000)
    with ordinary_user(), pytest.raises(InputError, match=r"valid\.txt: no permission to read it"):
        Corpus.from_folder(folder)
    folder.chmod(0o000)
    with ordinary_user(), pytest.raises(InputError, match=r"data/train\.txt: no permission to look at it"):
        open_corpus(str(folder))
    folder.chmod(0o755)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        open_corpus("wikitext2")
    assert "did you mean 'wikitext-2'?" in str(caught.value)
    assert "python, synthetic, ptb, wikitext-2" in str(caught.value)


def test_what_is_no_name() -> None:
    with pytest.raises(InputError, match="data must be the name of a data set or a folder, got int"):
        open_corpus(3)  # type: ignore[arg-type]


def test_a_folder_beside_us_needs_no_slash(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_folder().parent)
    assert open_corpus("data").name == "data"


def test_synthetic_by_name() -> None:
    corpus = open_corpus("synthetic", max_tokens=1000)
    assert corpus.name == "synthetic"
    assert 900 < len(corpus.train) <= 1000
    assert len(corpus.vocab) == 200


TEXT = st.lists(st.lists(st.sampled_from("abcde"), max_size=5).map(" ".join), min_size=2, max_size=20).filter(any)


@given(TEXT, st.integers(1, 4), st.none() | st.integers(2, 8))
@settings(deadline=None)
def test_agrees_with_a_naive_encoding(lines: list[str], min_count: int, max_words: int | None) -> None:
    text = "\n".join([*lines, ""])
    corpus = Corpus.from_texts(dict.fromkeys(("train", "valid", "test"), text), min_count=min_count, max_words=max_words)
    tokens = [word for line in lines for word in [*line.split(), EOS]]
    vocab = Vocab.build(Counter(tokens), min_count, max_words)
    assert corpus.vocab == vocab
    assert corpus.train.tolist() == vocab.encode(tokens)
    assert torch.equal(corpus.train, corpus.test)


@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
def test_the_standard_copies_have_their_tokens_and_types(real_data: Path, name: str) -> None:
    corpus = open_corpus(name, data_dir=real_data)
    files = KNOWN[name].files
    assert corpus.name == name
    assert len(corpus.vocab) == KNOWN[name].types
    for split in ("train", "valid", "test"):
        assert len(getattr(corpus, split)) == files[f"{split}.txt"].tokens
        assert corpus.checksums[split] == files[f"{split}.txt"].sha256
