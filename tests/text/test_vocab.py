from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.errors import InputError
from varsmooth.text.vocab import EOS, UNK, Vocab

WORDS = st.text(min_size=1).filter(lambda word: word.split() == [word] and "\0" not in word)
COUNTS = {"the": 5, "cat": 2, "mat": 2, "sat": 1, "ate": 1, EOS: 3}


def test_sorted_by_count_then_alphabetically() -> None:
    assert Vocab.build(COUNTS).words == ("the", EOS, "cat", "mat", "ate", "sat")


def test_min_count_gathers_rare_words_in_unk() -> None:
    vocab = Vocab.build(COUNTS, min_count=2)
    assert vocab.words == ("the", EOS, UNK, "cat", "mat")
    assert vocab.unk_id == 2


def test_nothing_dropped_means_no_unk() -> None:
    vocab = Vocab.build({"a": 2, EOS: 1}, min_count=2)
    assert vocab.words == ("a", EOS)
    assert vocab.unk_id is None


@pytest.mark.parametrize("max_words", range(2, 8))
def test_max_words_counts_all_rows(max_words: int) -> None:
    vocab = Vocab.build(COUNTS, max_words=max_words)
    assert len(vocab) == min(max_words, 6)
    assert (UNK in vocab) == (max_words < 6)
    assert EOS in vocab


def test_max_words_breaks_ties_alphabetically() -> None:
    assert set(Vocab.build(COUNTS, max_words=4).words) == {"the", EOS, UNK, "cat"}


def test_unk_in_the_text_is_kept_and_receives_the_rest() -> None:
    vocab = Vocab.build({UNK: 1, "a": 4, "b": 2, EOS: 2}, max_words=3)
    assert vocab.words == ("a", UNK, EOS)  # <unk> 1 + b 2


def test_unk_in_the_text_fits_exactly() -> None:
    assert len(Vocab.build({UNK: 1, "a": 4, "b": 2, EOS: 2}, max_words=4)) == 4


def test_eos_is_always_there() -> None:
    assert Vocab.build({"a": 1}).words == ("a", EOS)


@pytest.mark.parametrize("limits", [{"min_count": 0}, {"max_words": 1}])
def test_limits_out_of_range(limits: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"^m(in_count|ax_words) must be at least"):
        Vocab.build(COUNTS, **limits)


def test_encode_and_decode() -> None:
    vocab = Vocab(("a", EOS, UNK))
    assert vocab.encode(["a", "zebra", EOS]) == [0, 2, 1]
    assert vocab.decode(torch.tensor([0, 2, 1])) == ["a", UNK, EOS]
    assert vocab.index("zebra") is None
    assert "a" in vocab
    assert vocab.eos_id == 1


def test_unknown_word_without_unk_is_an_input_error() -> None:
    with pytest.raises(InputError, match="the word 'zebra' is not in the vocabulary"):
        Vocab(("a", EOS)).encode(["a", "zebra"])


@pytest.mark.parametrize("row", [-1, 2])
def test_ids_outside_the_vocabulary(row: int) -> None:
    with pytest.raises(InputError, match=f"{row} is not a word id"):
        Vocab(("a", EOS)).decode([row])


@pytest.mark.parametrize("words", [("a",), ("a", "a", EOS), ("", EOS), ("a b", EOS), ("a\0", EOS), ("\ud800", EOS)])
def test_impossible_vocabularies(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="vocabulary"):
        Vocab(words)


def test_is_immutable_and_comparable() -> None:
    vocab = Vocab(("a", EOS))
    with pytest.raises(AttributeError):
        vocab.words = ()  # type: ignore[misc]
    assert vocab == Vocab(("a", EOS))
    assert vocab != Vocab((EOS, "a"))
    assert repr(vocab) == "Vocab(2 words)"


def test_saved_as_one_word_a_line(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    vocab = Vocab(("a", "日本", EOS))
    vocab.save(path)
    assert path.read_bytes() == "a\n日本\n<eos>\n".encode()
    assert vocab.checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    assert Vocab.load(path) == vocab


def test_load_understands_bom_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\n<eos>\r\n")
    assert Vocab.load(path).words == ("a", EOS)


@given(st.lists(WORDS, unique=True).map(lambda words: (*dict.fromkeys([*words, EOS]),)))
@settings(deadline=None)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...]) -> None:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    vocab = Vocab(words)
    vocab.save(path)
    assert Vocab.load(path) == vocab
    assert Vocab.load(path).checksum == hashlib.sha256(path.read_bytes()).hexdigest()


def test_round_trip_of_a_word_like_a_byte_order_mark(tmp_path: Path) -> None:
    vocab = Vocab(("\ufeff", "\ufeffa", EOS))
    vocab.save(tmp_path / "vocab.txt")
    assert Vocab.load(tmp_path / "vocab.txt") == vocab


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n<eos>\na\n", r"vocab\.txt, line 3: 'a' is there already, in line 1"),
        (b"a\n\n<eos>\n", r"vocab\.txt, line 2: 0 words where one belongs"),
        (b"a b\n<eos>\n", r"vocab\.txt, line 1: 2 words where one belongs"),
        (b"a\nb\n", r"vocab\.txt: there is no <eos> among the 2 words"),
        (b"a\n\xff\n", r"vocab\.txt is not UTF-8 \(0xff at byte 2, in line 2\)"),
        (b"", r"vocab\.txt is empty"),
        (b"a\0\n", r"vocab\.txt holds binary data"),
    ],
)
def test_bad_vocabulary_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        Vocab.load(path)


@given(st.binary() | st.lists(st.sampled_from(["a", "b", "<eos>", "", "x y", "\xa0"])).map(lambda ws: "\n".join(ws).encode()))
@settings(deadline=None)
def test_any_vocabulary_file_loads_or_gives_one_clear_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_bytes(data)
    try:
        vocab = Vocab.load(path)
    except InputError as error:
        message = str(error)
    else:
        message = "vocab.txt has been read"
        assert vocab.words == tuple(data.decode("utf-8-sig").split())
    assert "vocab.txt" in message
    assert "\n" not in message
