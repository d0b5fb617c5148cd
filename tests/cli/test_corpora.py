from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands_for_tests import Run, refused
from varsmooth.cli import corpora
from varsmooth.text import bigrams, splits
from varsmooth.text.locks import locked
from varsmooth.text.named import KNOWN, KnownData, KnownFile

TEXTS = {"train": "the cat sat\non the mat\n", "valid": "the mat sat\n", "test": "on the cat\n"}
FAKE = {f"{split}.txt": KnownFile(hashlib.sha256(text.encode()).hexdigest(), 8) for split, text in TEXTS.items()}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARSMOOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VARSMOOTH_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "text")


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small stand-in for ptb, and nothing for wikitext-2."""
    monkeypatch.setitem(KNOWN, "ptb", KnownData("ptb", 6, FAKE))
    write(tmp_path / "data" / "ptb")
    return tmp_path / "data"


def write(folder: Path, **changes: bytes | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in {**{split: text.encode() for split, text in TEXTS.items()}, **changes}.items():
        if text is None:
            (folder / f"{split}.txt").unlink(missing_ok=True)
        else:
            (folder / f"{split}.txt").write_bytes(text)
    return folder


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in found}


def test_stats_as_json_agree_with_counting_by_hand(run: Run, folder: Path) -> None:
    status, shown, complaint = run("stats", folder, "--json")
    assert (status, complaint) == (0, "")
    found = json.loads(shown)
    assert (found["data"], found["vocab_size"], found["gamma"]) == ("text", 6, 0.2)
    assert {name: split["tokens"] for name, split in found["splits"].items()} == {"train": 8, "valid": 4, "test": 4}
    assert found["token_rate"] == pytest.approx(1.4 / 8)
    assert [item["word"] for item in found["raised"]] == ["<eos>"]
    assert [item["word"] for item in found["lowered"]] == ["the"]


def test_stats_flags_reach_the_corpus(run: Run, folder: Path) -> None:
    found = json.loads(run("stats", folder, "--json", "--gamma", "1", "--min-count", 2)[1])
    assert (found["gamma"], found["vocab_size"]) == (1.0, 3)
    assert found["splits"]["train"]["unknown_share"] == 0.5
    assert json.loads(run("stats", folder, "--json", "--max-words", 2)[1])["vocab_size"] == 2
    assert json.loads(run("stats", folder, "--json", "--max-tokens", 4, "--min-count", 2)[1])["splits"]["train"]["tokens"] == 4


def test_stats_as_tables_are_plain_where_there_is_no_terminal(run: Run, folder: Path) -> None:
    status, shown, _ = run("stats", folder)
    assert status == 0
    assert "text: size" in shown
    assert "Rates by frequency" in shown
    assert "\x1b" not in shown


def test_stats_draws_a_picture_and_says_where(run: Run, folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "stats.png"
    status, shown, _ = run("stats", folder, "--plot", picture)
    assert status == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}\n" in shown


def test_stats_replaces_a_picture_only_where_told_to(run: Run, folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "own.png"
    picture.write_text("mine")
    refused(run("stats", folder, "--plot", picture), f"{picture} exists already", "--plot", "--force")
    refused(run("stats", tmp_path / "nowhere", "--plot", picture), "exists already")  # before any work
    assert picture.read_text() == "mine"
    assert run("stats", folder, "--plot", picture, "--force")[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_stats_of_a_data_set_by_name(run: Run, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run("stats", "ptb", "--data-dir", copies, "--json")[1])["data"] == "ptb"
    monkeypatch.setenv("VARSMOOTH_DATA", str(copies))
    assert json.loads(run("stats", "--data", "ptb", "--json")[1])["vocab_size"] == 6
    assert json.loads(run("stats", "synthetic", "--max-tokens", 2000, "--json")[1])["vocab_size"] == 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid": None}, ["valid.txt"]),
        ({"train": b""}, ["train.txt", "empty"]),
        ({"test": b"caf\xe9\n"}, ["test.txt", "UTF-8", "3"]),
        ({"test": b"the \x00 cat\n"}, ["test.txt"]),
        ({"test": b"\n \n"}, ["test.txt is empty; it must hold at least one line of text"]),
        ({"train": b"the cat sat on mat\n" * 2, "test": b"the dog\n"}, ["test.txt, line 1", "'dog'", "min_count=3"]),
    ],
)
def test_bad_text_gets_one_line(run: Run, folder: Path, changes: dict[str, bytes | None], words: list[str]) -> None:
    write(folder, **changes)
    result = run("stats", folder)
    refused(result, *words)
    assert result[1] == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gamma", "1.5"], ["gamma", "1.5"]),
        (["--gamma", "-0.1"], ["gamma", "-0.1"]),
        (["--gamma", "nan"], ["gamma", "nan"]),
        (["--gamma", "much"], ["--gamma", "much"]),
        (["--min-count", "0"], ["min_count must be at least 1"]),
        (["--max-words", "1"], ["max_words must be at least 2"]),
        (["--max-tokens", "0"], ["max_tokens must be at least 1"]),
        (["--plot", "picture.pdf"], ["--plot", ".png"]),
        (["--gama", "0.1"], ["--gama"]),
    ],
)
def test_bad_flags_get_one_line(run: Run, folder: Path, flags: list[str], words: list[str]) -> None:
    result = run("stats", folder, *flags)
    refused(result, *words)
    assert result[1] == ""


def test_bad_places_get_one_line(run: Run, folder: Path, tmp_path: Path) -> None:
    refused(run("stats", tmp_path / "nowhere"), f"there is no folder {tmp_path / 'nowhere'}")
    refused(run("stats", folder / "train.txt"), "train.txt is a file")
    refused(run("stats", "pyhton"), "pyhton", "did you mean 'python'?")
    refused(run("train", "--data", "pyhton", "--out", tmp_path / "run"), "pyhton; did you mean 'python'?")
    refused(run("train", "--data", "", "--out", tmp_path / "run"), "--data is empty")
    assert not (tmp_path / "run").exists()
    refused(run("stats"), "--data")
    refused(run("stats", "ptb"), "ptb was not found", "varsmooth data get ptb")
    unwritable = folder / "train.txt" / "picture.png"
    refused(run("stats", folder, "--plot", unwritable), f"--plot {unwritable}: {folder / 'train.txt'} is a file, not a folder")
    assert (folder / "train.txt").read_text() == TEXTS["train"]


def test_stats_in_a_process_of_its_own(folder: Path, tmp_path: Path) -> None:
    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "varsmooth", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ})

    good = process("stats", str(folder), "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["vocab_size"] == 6
    bad = process("data", "check", "ptb", "--data-dir", str(tmp_path))
    refused((bad.returncode, bad.stdout, bad.stderr), f"{tmp_path / 'ptb'}: train.txt, valid.txt, test.txt are missing")


def test_list_says_what_there_is_and_where(run: Run, copies: Path) -> None:
    found = by_name(json.loads(run("data", "list", "--data-dir", copies, "--json")[1]))
    assert {name: item["status"] for name, item in found.items()} == {
        "python": "built in",
        "synthetic": "built in",
        "ptb": "ok",
        "wikitext-2": "missing",
    }
    assert found["ptb"]["folder"] == str(copies / "ptb")
    status, shown, _ = run("data", "list", "--data-dir", copies)
    assert status == 0
    assert f"ptb is in {copies / 'ptb'}\n" in shown
    assert f"wikitext-2 was not found in {copies / 'wikitext-2'}\n" in shown


def test_check_of_the_standard_copy(run: Run, copies: Path) -> None:
    status, shown, complaint = run("data", "check", "ptb", "--data-dir", copies)
    assert (status, complaint) == (0, "")
    assert shown.count("standard copy") == 3
    assert run("data", "check", "python")[0] == 0


def test_check_names_a_differing_copy(run: Run, copies: Path) -> None:
    write(copies / "ptb", valid=b"another text\n")
    result = run("data", "check", "ptb", "--data-dir", copies)
    refused(result, f"{copies / 'ptb'}: valid.txt is not the standard copy", "varsmooth data get ptb")
    assert result[1].count("differs from the standard copy") == 1
    result = run("data", "check", "ptb", "--data-dir", copies, "--json")
    refused(result, "valid.txt")
    (found,) = json.loads(result[1])
    assert found["status"] == "differs"
    assert {file: entry["status"] for file, entry in found["files"].items()} == {
        "train.txt": "ok",
        "valid.txt": "differs",
        "test.txt": "ok",
    }


def test_check_names_what_is_missing(run: Run, copies: Path) -> None:
    write(copies / "ptb", test=None)
    result = run("data", "check", "--all", "--data-dir", copies, "--json")
    refused(result, "test.txt is missing", f"{copies / 'wikitext-2'}: train.txt, valid.txt, test.txt are missing")
    found = by_name(json.loads(result[1]))
    assert (found["ptb"]["status"], found["wikitext-2"]["status"]) == ("incomplete", "missing")


def test_check_needs_one_name_or_all(run: Run) -> None:
    refused(run("data", "check"), "--all")
    refused(run("data", "check", "ptb", "--all"), "--all", "not both")
    refused(run("data", "check", "pbt"), "'pbt'", "did you mean 'ptb'?")
    refused(run("data", "get", "wikitext2"), "'wikitext2'", "did you mean 'wikitext-2'?")


def test_get_explains_ptb(run: Run, tmp_path: Path) -> None:
    status, shown, _ = run("data", "get", "ptb", "--data-dir", tmp_path)
    assert status == 2
    assert "licensed" in shown
    assert str(tmp_path / "ptb") in shown
    assert all(file.sha256 in shown for file in KNOWN["ptb"].files.values())


def test_get_has_nothing_to_do(run: Run, copies: Path) -> None:
    for name in ("python", "synthetic"):
        status, shown, _ = run("data", "get", name)
        assert (status, shown) == (0, f"{name} is built in: there is nothing to get\n")
    status, shown, _ = run("data", "get", "ptb", "--data-dir", copies)
    assert (status, shown) == (0, f"ptb is there already: {copies / 'ptb'}\n")


def test_get_fetches_wikitext(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []
    monkeypatch.setattr(corpora, "fetch_wikitext2", fetched.append)
    status, shown, note = run("data", "get", "wikitext-2", "--data-dir", tmp_path)
    assert status == 0
    assert fetched == [tmp_path / "wikitext-2"]
    assert note.startswith("fetching wikitext-2 from the Hugging Face hub")
    assert str(tmp_path / "wikitext-2") in shown


def test_get_without_the_extra_writes_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    status, shown, complaint = run("data", "get", "wikitext-2", "--data-dir", tmp_path)
    assert (status, shown) == (2, "")
    assert complaint.splitlines()[-1] == "varsmooth: fetching needs huggingface_hub: pip install 'varsmooth[hub]'"
    assert not (tmp_path / "wikitext-2").exists()


def test_get_leaves_another_copy_alone(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "wikitext-2")
    status, _, complaint = run("data", "get", "wikitext-2", "--data-dir", tmp_path)
    assert status == 2
    assert "is there already and is not the standard copy" in complaint.splitlines()[-1]
    assert (tmp_path / "wikitext-2" / "train.txt").read_text() == TEXTS["train"]


@pytest.fixture
def large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as large."""
    monkeypatch.setattr(splits, "MAPPED_ABOVE", 10)
    return folder


def test_stats_of_a_large_text_are_those_of_a_small_one(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = run("stats", folder, "--json")
    monkeypatch.setattr(splits, "MAPPED_ABOVE", 10)
    monkeypatch.setattr(bigrams, "IN_MEMORY", 10)
    assert run("stats", folder, "--json") == small
    assert json.loads(run("data", "cache", "--json")[1])["entries"][0]["tokens"] == 16


def test_prepare_encodes_once(run: Run, large: Path) -> None:
    status, shown, complaint = run("data", "prepare", large, "--min-count", 2, "--workers", 1, "--json")
    assert (status, complaint) == (0, "")
    first = json.loads(shown)
    assert first["encoded"]
    assert not first["was_there"]
    assert first["vocab_size"] == 3
    assert first["tokens"] == {"train": 8, "valid": 4, "test": 4}
    assert first["checksums"]["train"] == FAKE["train.txt"].sha256
    assert json.loads(run("data", "prepare", large, "--min-count", 2, "--json")[1])["was_there"]
    assert "was encoded already" in run("data", "prepare", large, "--min-count", 2)[1]


def test_prepare_has_nothing_to_do_for_a_small_text(run: Run, folder: Path) -> None:
    assert json.loads(run("data", "prepare", folder, "--json")[1]) == {"data": str(folder), "encoded": False}
    assert "nothing to prepare" in run("data", "prepare", folder)[1]


def test_cache_shows_and_deletes(run: Run, large: Path) -> None:
    assert "0 encoded texts" in run("data", "cache")[1]
    run("data", "prepare", large)
    shown = run("data", "cache")[1]
    assert "1 encoded texts" in shown
    (entry,) = json.loads(run("data", "cache", "--json")[1])["entries"]
    assert entry["sources"]["train"] == str(large / "train.txt")
    (Path(entry["folder"]) / "about.json").unlink()
    assert "damaged or unfinished" in run("data", "cache")[1]
    assert "deleted 1 encoded texts" in run("data", "cache", "--clear")[1]
    assert json.loads(run("data", "cache", "--json")[1])["entries"] == []


def test_clearing_the_cache_leaves_what_others_make_and_takes_what_they_left(run: Run, large: Path, tmp_path: Path) -> None:
    run("data", "prepare", large)
    run("data", "prepare", large, "--min-count", 2)
    made, other = (Path(entry["folder"]) for entry in json.loads(run("data", "cache", "--json")[1])["entries"])
    building = made.with_name(f"{made.name}.building-1")
    building.mkdir()
    left = tmp_path / "cache" / "bigrams-left"
    left.mkdir()
    (left / "lock").touch()
    with locked(made.with_name(f"{made.name}.lock"), "as the process that makes it holds it"):
        assert "deleted 1 encoded texts" in run("data", "cache", "--clear")[1]
    assert (made.exists(), building.exists(), other.exists(), left.exists()) == (True, True, False, False)
    assert "deleted 2 encoded texts" in run("data", "cache", "--clear")[1]
    assert not building.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid": None}, ["valid.txt"]),
        ({"train": b""}, ["train.txt", "empty"]),
        ({"test": b"caf\xe9\n"}, ["test.txt", "UTF-8", "3"]),
        ({"train": b"the cat sat on mat\n" * 2, "test": b"the dog\n"}, ["test.txt, line 1", "'dog'", "min_count=3"]),
    ],
)
def test_bad_large_text_gets_one_line(
    run: Run, large: Path, tmp_path: Path, changes: dict[str, bytes | None], words: list[str]
) -> None:
    write(large, **changes)
    for verb in (("stats",), ("data", "prepare")):
        result = run(*verb, large)
        refused(result, *words)
        assert result[1] == ""
    assert json.loads(run("data", "cache", "--json")[1])["entries"] == []


def test_bad_preparations_get_one_line(run: Run, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run("data", "prepare", "python"), "python is built in")
    refused(run("data", "prepare", tmp_path / "nowhere"), "there is no folder")
    refused(run("data", "prepare", large, "--workers", 0), "--workers must be at least 1, not 0")
    refused(run("data", "prepare", large, "--min-count", -1), "min_count must be at least 1")
    monkeypatch.setenv("VARSMOOTH_CACHE", str(large / "train.txt"))
    refused(run("data", "prepare", large), "cannot be written", "VARSMOOTH_CACHE")
