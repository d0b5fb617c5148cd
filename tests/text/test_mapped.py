"""Ids mapped from disk: the same as in memory for every odd text, made once, made again when something has changed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from processes_for_tests import PATIENCE, started
from varsmooth.errors import InputError
from varsmooth.text import EOS, UNK, Corpus, Vocab, chunks, encoding, mapped, open_corpus, splits
from varsmooth.text.batches import Windows
from varsmooth.text.chunk_worker import number
from varsmooth.text.counts import Counts
from varsmooth.text.encoding import Request
from varsmooth.text.mapped import open_mapped
from varsmooth.text.options import Options

MakeFolder = Callable[..., Path]
SPLITS = ("train", "valid", "test")


def same(found: Corpus, expected: Corpus) -> None:
    assert found.vocab == expected.vocab
    assert found.vocab.checksum == expected.vocab.checksum
    assert found.checksums == expected.checksums
    for split in SPLITS:
        assert getattr(found, split).dtype == torch.int32
        assert torch.equal(getattr(found, split).long(), getattr(expected, split))


def request(folder: Path, **options: Any) -> Request:
    return Request({split: folder / f"{split}.txt" for split in SPLITS}, Options(**options))


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "ids").iterdir() if path.suffix != ".lock")


def age(folder: Path) -> None:
    """Make the texts look old, so that their times are trusted."""
    for split in SPLITS:
        os.utime(folder / f"{split}.txt", (1, 1))


ODD = {
    "plain": b"the cat sat\non the mat\n",
    "empty lines": b"\n\nthe cat\n\n\n sat \n\n",
    "carriage returns": b"\xef\xbb\xbfthe cat\r\n\r\nsat on\r\nthe mat\r\n",
    "no final newline": b"the cat\nsat on the mat",
    "a final blank": b"the cat\nsat on the mat\n ",
    "unicode": "naïve 日本 \u2028 x\u00a0y \U0001f600\u3000z\n日本\x85 é\n".encode() * 3,
    "words that look like marks": b"<eos> a <eos>\n<unk> b\n<eos>\n",
    "one very long line": b"the cat sat on " * 20 + b"\n",
    "one very long word": b"x" * 300 + b" the\n" + "日本".encode() * 100 + b"\n",
    "byte-order marks in the middle": "a \ufeff b\n\ufeffc\n".encode(),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("size", [1, 40])
def test_same_as_in_memory_wherever_chunks_end(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, text: bytes, size: int
) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr(chunks, "CHUNK", size)
    monkeypatch.setattr(chunks, "LOOK_AHEAD", 5)
    folder = make_folder(train=text, valid=text, test=text)
    same(Corpus.from_folder(folder, mapped=True), Corpus.from_folder(folder, mapped=False))
    same(
        Corpus.from_folder(folder, mapped=True, min_count=2, max_words=4),
        Corpus.from_folder(folder, mapped=False, min_count=2, max_words=4),
    )


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the start of a process for every chunk of a few bytes."""
    from varsmooth.text import chunk_worker

    monkeypatch.setattr(
        chunks,
        "_run_worker",
        lambda chunk, stem: chunk_worker.work(chunk.path, chunk.start, chunk.end, chunk.size, str(stem)),
    )


LINES = st.lists(st.text(st.sampled_from("ab \n\r\té日\u2028\ufeff"), max_size=12), min_size=1, max_size=12)


@given(LINES, st.integers(1, 40), st.integers(1, 3), st.none() | st.integers(1, 30))
@settings(deadline=None, max_examples=60)
def test_agrees_with_memory_on_any_text(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int, min_count: int, max_tokens: int | None
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for split, text in zip(SPLITS, ("\n".join(lines), "a b\n" * 3, "\n".join(lines[::-1])), strict=True):
        (folder / f"{split}.txt").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VARSMOOTH_CACHE", str(folder / "cache"))
        patch.setattr(chunks, "CHUNK", size)
        in_this_process(patch)
        options = {"min_count": min_count, "max_tokens": max_tokens}
        found, expected = (outcome(folder, mapped=mapped, **options) for mapped in (True, False))
        if isinstance(expected, str):
            assert found == expected
        else:
            same(found, expected)


def outcome(folder: Path, **options: Any) -> Any:
    try:
        return Corpus.from_folder(folder, **options)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_of_their_own_give_the_same_in_file_order(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    text = "".join(f"word{row % 7} é{row} x\n" for row in range(400))
    folder = make_folder(train=text, valid=text[:100], test=text[-100:])
    monkeypatch.setattr(chunks, "CHUNK", 1000)
    assert len(chunks.cut(folder / "train.txt")) > 3
    made = open_mapped(request(folder, min_count=2), workers=workers)
    expected = Corpus.from_folder(folder, min_count=2, mapped=False)
    assert made.vocab == expected.vocab
    assert made.checksums == expected.checksums
    assert torch.equal(made.ids["train"].long(), expected.train)
    assert not made.was_there


def test_no_chunk_cuts_a_word_or_a_character(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("日本 語 naïve\n".encode() * 50)
    pieces = [path.read_bytes()[chunk.start : chunk.end] for chunk in chunks.cut(path, 10)]
    assert len(pieces) > 10
    assert b"".join(pieces) == path.read_bytes()
    assert {word for piece in pieces for word in piece.decode().split()} == {"日本", "語", "naïve"}
    assert all(piece[-1:].isspace() for piece in pieces)


def test_numbering_goes_on_over_the_end_of_a_chunk() -> None:
    ids, line_ends, words = number("a b\nc", is_last=False)
    assert (ids.tolist(), line_ends.tolist(), list(words)) == ([1, 2, 0, 3], [3], [EOS, "a", "b", "c"])
    assert number("c", is_last=True)[0].tolist() == [1, 0]


def test_only_large_folders_are_mapped(make_folder: MakeFolder, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    assert open_corpus(folder).train.dtype == torch.int64
    assert not own_cache.exists()
    monkeypatch.setattr(splits, "MAPPED_ABOVE", 10)
    same(open_corpus(folder), open_corpus(folder, mapped=False))
    (entry,) = entries(own_cache)
    assert sorted(path.name for path in (own_cache / "ids" / entry).iterdir()) == [
        "about.json",
        "test.i32",
        "train.i32",
        "valid.i32",
        "vocab.txt",
    ]


def test_an_entry_says_what_it_is(make_folder: MakeFolder, own_cache: Path) -> None:
    corpus = Corpus.from_folder(make_folder(), mapped=True, min_count=2)
    folder = own_cache / "ids" / entries(own_cache)[0]
    about = json.loads((folder / "about.json").read_bytes())
    assert about["format"] == 1
    assert about["options"] == {"min_count": 2, "max_words": None, "max_tokens": None}
    assert about["vocab_checksum"] == corpus.vocab.checksum
    assert {split: entry["sha256"] for split, entry in about["sources"].items()} == corpus.checksums
    assert {split: entry["tokens"] for split, entry in about["ids"].items()} == {"train": 8, "valid": 4, "test": 4}
    assert np.fromfile(folder / "train.i32", dtype="<i4").tolist() == corpus.train.tolist()


def test_a_second_opening_encodes_nothing(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    age(folder)
    first = open_mapped(request(folder))
    monkeypatch.setattr(mapped, "encode", None)
    again = open_mapped(request(folder))
    assert again.was_there
    assert again.checksums == first.checksums
    assert torch.equal(again.ids["train"], first.ids["train"])


def test_a_run_that_goes_on_finds_the_entry_it_began_with(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    age(folder)
    first = open_mapped(request(folder))
    monkeypatch.setattr(mapped, "encode", None)
    again = open_mapped(request(folder, vocab=first.vocab))
    assert (again.was_there, again.folder) == (True, first.folder)


def test_options_and_vocabularies_have_entries_of_their_own(make_folder: MakeFolder, own_cache: Path) -> None:
    folder = make_folder()
    vocab = Vocab((EOS, "the", UNK, "cat"))
    for options in ({}, {"min_count": 2}, {"max_words": 3}, {"max_tokens": 5, "min_count": 2}, {"vocab": vocab}):
        same(Corpus.from_folder(folder, mapped=True, **options), Corpus.from_folder(folder, mapped=False, **options))
    assert len(entries(own_cache)) == 5
    assert Corpus.from_folder(folder, mapped=True, vocab=vocab).vocab is vocab


@pytest.mark.parametrize("split", SPLITS)
def test_a_changed_text_is_encoded_anew(make_folder: MakeFolder, own_cache: Path, split: str) -> None:
    folder = make_folder()
    age(folder)
    first = Corpus.from_folder(folder, mapped=True, min_count=2)
    kept = first.train.tolist()
    path = folder / f"{split}.txt"
    path.write_bytes(path.read_bytes().replace(b"cat", b"the").replace(b"mat", b"the"))  # of the same size
    same(Corpus.from_folder(folder, mapped=True, min_count=2), Corpus.from_folder(folder, mapped=False, min_count=2))
    assert len(entries(own_cache)) == 1
    assert first.train.tolist() == kept  # what is mapped already stays as it was


def test_a_change_within_one_tick_of_the_clock_is_noticed(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    now = time.time_ns()
    monkeypatch.setattr(encoding, "signature", lambda _: [1, now, now, 1])  # never differs
    Corpus.from_folder(folder, mapped=True)
    make_folder(train="the mat sat\non the cat\n")
    same(Corpus.from_folder(folder, mapped=True), Corpus.from_folder(folder, mapped=False))


def test_a_touched_text_is_not_encoded_anew(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    folder = make_folder()
    age(folder)
    open_mapped(request(folder))
    monkeypatch.setattr(mapped, "encode", None)
    monkeypatch.setattr(encoding, "SETTLED", -(10**18))
    os.utime(folder / "train.txt", (2, 2))
    assert open_mapped(request(folder)).was_there
    about = json.loads((own_cache / "ids" / entries(own_cache)[0] / "about.json").read_bytes())
    assert about["sources"]["train"]["signature"][1] == 2 * 10**9  # noted, so that it is not read again


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "ids changed": lambda entry: _flip(entry / "train.i32"),
    "ids cut": lambda entry: os.truncate(entry / "valid.i32", 8),
    "ids gone": lambda entry: (entry / "test.i32").unlink(),
    "words changed": lambda entry: (entry / "vocab.txt").write_text("<eos>\nother\n"),
    "words gone": lambda entry: (entry / "vocab.txt").unlink(),
    "about nothing": lambda entry: (entry / "about.json").write_bytes(b""),
    "about something else": lambda entry: (entry / "about.json").write_text('{"format": 1, "sources": [], "ids": 3}'),
    "another format": lambda entry: (entry / "about.json").write_text('{"format": 0}'),
    "about gone": lambda entry: (entry / "about.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_only_costs_time(make_folder: MakeFolder, own_cache: Path, damage: Callable[[Path], object]) -> None:
    folder = make_folder()
    age(folder)
    Corpus.from_folder(folder, mapped=True)
    (entry,) = entries(own_cache)
    damage(own_cache / "ids" / entry)
    assert not open_mapped(request(folder)).was_there
    same(Corpus.from_folder(folder, mapped=True), Corpus.from_folder(folder, mapped=False))
    assert entries(own_cache) == [entry]


def test_what_is_mapped_never_reaches_the_file(make_folder: MakeFolder, own_cache: Path) -> None:
    corpus = Corpus.from_folder(make_folder(), mapped=True)
    path = own_cache / "ids" / entries(own_cache)[0] / "train.i32"
    before = path.read_bytes()
    corpus.train.zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("split", "data"),
    [
        ("train", b""),
        ("valid", b"\xef\xbb\xbf"),
        ("train", b"the cat\n" * 30 + b"the \xff\n" + b"\0\n"),
        ("test", b"the cat\n" * 30 + b"the\0cat\n"),
        ("test", b"the cat \xe6\x97"),
        ("test", b"\n"),
        ("valid", b" \n" * 60 + b" "),
        ("train", b"cat mat sat the\n" * 30),
    ],
)
def test_bad_text_is_named_as_in_memory_and_leaves_nothing(
    make_folder: MakeFolder, own_cache: Path, monkeypatch: pytest.MonkeyPatch, split: str, data: bytes
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 50)
    folder = make_folder(**{split: data})
    found, expected = (outcome(folder, mapped=mapped) for mapped in (True, False))
    assert isinstance(expected, str)
    assert found == expected
    assert entries(own_cache) == []


def test_a_text_that_goes_or_changes_while_it_is_read(
    make_folder: MakeFolder, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()
    path = folder / "train.txt"
    cut = chunks.cut
    for spoil, message in (
        (path.unlink, r"train\.txt: there is no such file"),
        (lambda: os.truncate(path, 4), r"train\.txt changed while it was read"),
        (lambda: path.write_bytes(b"other words in it\n"), r"train\.txt changed while it was read"),
    ):
        make_folder()

        def spoiled(path: Path, spoil: Callable[[], object] = spoil) -> list[chunks.Chunk]:
            found = cut(path)
            if path.name == "test.txt":
                spoil()
            return found

        monkeypatch.setattr(encoding, "cut", spoiled)
        with pytest.raises(InputError, match=message):
            open_mapped(request(folder))
        assert entries(own_cache) == []


def test_a_limit_is_refused_before_anything_is_read(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "cut", None)
    with pytest.raises(InputError, match="min_count must be at least 1"):
        Corpus.from_folder(make_folder(), mapped=True, min_count=0)


def test_no_place_for_a_cache(make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("VARSMOOTH_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file/ids: the encoded text cannot be written .*VARSMOOTH_CACHE"):
        Corpus.from_folder(folder, mapped=True)
    monkeypatch.setattr(mapped, "cache_folder", lambda: None)
    with pytest.raises(InputError, match="set VARSMOOTH_CACHE to a folder"):
        Corpus.from_folder(folder, mapped=True)


@pytest.mark.parametrize("place", ["worker", "parent"])
def test_no_room_on_the_disk(make_folder: MakeFolder, own_cache: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def full(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    if place == "worker":
        monkeypatch.setattr(chunks, "_run_worker", lambda *_: {"unwritten": 28})
    else:
        monkeypatch.setattr(encoding.os, "fsync", full)
    with pytest.raises(InputError, match=r"no room for the encoded text.*VARSMOOTH_CACHE"):
        open_mapped(request(make_folder()))
    assert entries(own_cache) == []


def test_a_worker_that_is_killed_is_told_of(make_folder: MakeFolder, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -9, b"", b"")
    monkeypatch.setattr(chunks.subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(InputError, match=r"train\.txt: a process that encoded it ended with signal 9"):
        open_mapped(request(make_folder()))
    assert entries(own_cache) == []


def test_a_read_only_cache_is_read(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    age(folder)
    open_mapped(request(folder))

    def refuse(*_: object) -> Any:
        raise OSError(30, "Read-only file system")

    from varsmooth.text import locks

    monkeypatch.setattr(locks.os, "open", refuse)
    assert open_mapped(request(folder)).was_there


def test_two_at_once_make_one_entry(make_folder: MakeFolder, own_cache: Path) -> None:
    folder = make_folder()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: open_mapped(request(folder)), range(4)))
    assert sorted(item.was_there for item in found) == [False, True, True, True]
    assert len({item.ids["train"].sum().item() for item in found}) == 1
    assert len(entries(own_cache)) == 1


def test_two_without_locks_do_each_other_no_harm(
    make_folder: MakeFolder, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "locked", lambda *_: nullcontext(False))
    folder = make_folder()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: open_mapped(request(folder)), range(4)))
    assert {tuple(item.ids["train"].tolist()) for item in found} == {(1, 2, 5, 0, 4, 1, 3, 0)}
    assert len(entries(own_cache)) == 1


@pytest.mark.slow
def test_two_processes_at_once_make_one_entry(make_folder: MakeFolder, own_cache: Path) -> None:
    text = "".join(f"a{row % 50} b{row}\n" for row in range(2000))
    folder = make_folder(train=text, valid=text, test=text)
    program = (
        "import sys; from varsmooth.text import chunks, Corpus; chunks.CHUNK = 5000; "
        "print(Corpus.from_folder(sys.argv[1], mapped=True, min_count=2).train.long().sum().item())"
    )
    with ExitStack() as stack:
        both = [stack.enter_context(started(["-c", program, str(folder)])) for _ in range(2)]
        said = [process.communicate(timeout=PATIENCE) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    sums = [int(out) for out, _ in said]
    assert sums == 2 * [int(Corpus.from_folder(folder, min_count=2, mapped=False).train.sum())]
    assert len(entries(own_cache)) == 1


def test_what_a_killed_process_left_is_removed(make_folder: MakeFolder, own_cache: Path) -> None:
    folder = make_folder()
    entry = open_mapped(request(folder)).folder
    left = entry.with_name(entry.name + mapped.BUILDING + "gone")
    left.mkdir()
    (entry / "about.json").unlink()
    open_mapped(request(folder))
    assert entries(own_cache) == [entry.name]


def test_counts_of_mapped_ids_are_those_of_ids_in_memory(make_folder: MakeFolder) -> None:
    folder = make_folder()
    mapped_ids, ids = (Corpus.from_folder(folder, mapped=mapped).train for mapped in (True, False))
    found, expected = Counts.from_ids(mapped_ids, 6), Counts.from_ids(ids, 6)
    for name in ("unigram", "distinct_after", "distinct_before"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_batches_are_those_of_ids_in_memory(make_folder: MakeFolder) -> None:
    text = "".join(f"a{row % 5} b\n" for row in range(50))
    folder = make_folder(train=text, valid=text, test=text)
    windows = [Windows(Corpus.from_folder(folder, mapped=mapped).train, 4, 6) for mapped in (True, False)]
    for start in (0, 7, 140):
        found, expected = (of_kind.starting_at(start) for of_kind in windows)
        assert all(map(torch.equal, found, expected))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own figures on memory")
def test_a_batch_reads_its_windows_alone(tmp_path: Path) -> None:
    path = tmp_path / "large.i32"
    path.touch()
    os.truncate(path, 400_000_000)  # takes no room on the disk
    windows = Windows(mapped._map(path, 100_000_000), 8, 35)
    before = resident()
    inputs, _ = windows.starting_at(1_000_000)
    assert inputs.shape == (35, 8)
    assert resident() - before < 50_000_000


def resident() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return 1024 * int(line.split()[1])
