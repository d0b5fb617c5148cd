from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from varsmooth.errors import InputError
from varsmooth.text import open_corpus
from varsmooth.text.named import DESCRIPTIONS, KNOWN, KnownData, KnownFile, check, data_root, locate, ptb_instructions

TEXT = b"a small corpus\n"
FAKE = KnownData("fake", 4, {"train.txt": KnownFile(hashlib.sha256(TEXT).hexdigest(), 4)})


def put(root: Path, name: str = "ptb") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    for file in ("train.txt", "valid.txt", "test.txt"):
        (folder / file).write_bytes(TEXT)
    return folder


def test_where_data_is_looked_for(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_root() == own_cache / "data"
    monkeypatch.setenv("VARSMOOTH_DATA", str(tmp_path / "variable"))
    assert data_root() == tmp_path / "variable"
    assert data_root(tmp_path / "flag") == tmp_path / "flag"


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_differing_copy_is_found_and_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    folder = put(tmp_path)
    if by == "variable":
        monkeypatch.setenv("VARSMOOTH_DATA", str(tmp_path))
    data_dir = tmp_path if by == "flag" else None
    assert locate("ptb", data_dir) == folder
    corpus = open_corpus("ptb", data_dir=data_dir)
    assert corpus.name == "ptb"
    assert len(corpus.train) == 4
    assert set(check(KNOWN["ptb"], folder).values()) == {"differs"}


def test_missing_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_corpus("wikitext-2", data_dir=tmp_path)
    message = str(caught.value)
    assert f"{tmp_path / 'wikitext-2'} has no train.txt, valid.txt, test.txt" in message
    assert "--data-dir" in message
    assert "VARSMOOTH_DATA" in message
    assert "varsmooth data get wikitext-2" in message
    assert "\n" not in message


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    (put(tmp_path) / "valid.txt").unlink()
    with pytest.raises(InputError, match=r"has no valid\.txt;"):
        locate("ptb", tmp_path)


def test_check_tells_ok_differs_and_missing(tmp_path: Path) -> None:
    folder = put(tmp_path, "fake")
    assert check(FAKE, folder) == {"train.txt": "ok"}
    (folder / "train.txt").write_bytes(TEXT + b" ")
    assert check(FAKE, folder) == {"train.txt": "differs"}
    (folder / "train.txt").unlink()
    assert check(FAKE, folder) == {"train.txt": "missing"}
    assert check(FAKE, folder / "valid.txt") == {"train.txt": "missing"}


def test_data_set_behind_closed_doors(open_folder: Path, ordinary_user: Callable[[], AbstractContextManager[None]]) -> None:
    put(open_folder).chmod(0o000)
    with ordinary_user(), pytest.raises(InputError, match=r"ptb/train\.txt: no permission to look at it"):
        locate("ptb", open_folder)
    (open_folder / "ptb").chmod(0o700)


def test_check_names_what_cannot_be_read(open_folder: Path, ordinary_user: Callable[[], AbstractContextManager[None]]) -> None:
    (open_folder / "train.txt").write_bytes(TEXT)
    (open_folder / "train.txt").chmod(0o000)
    with ordinary_user(), pytest.raises(InputError, match=r"train\.txt cannot be read: Permission denied"):
        check(FAKE, open_folder)
    (open_folder / "train.txt").unlink()
    (open_folder / "train.txt").mkdir()
    with pytest.raises(InputError, match=r"train\.txt cannot be read: Is a directory"):
        check(FAKE, open_folder)


def test_every_name_is_described() -> None:
    assert list(DESCRIPTIONS) == ["python", "synthetic", "ptb", "wikitext-2"]
    assert set(KNOWN) < set(DESCRIPTIONS)
    for known in KNOWN.values():
        assert list(known.files) == ["train.txt", "valid.txt", "test.txt"]
        assert all(len(file.sha256) == 64 for file in known.files.values())
        assert replace(known) == known


def test_ptb_instructions_say_what_and_where(tmp_path: Path) -> None:
    text = ptb_instructions(tmp_path)
    assert "licensed" in text
    assert str(tmp_path / "ptb") in text
    for file, expected in KNOWN["ptb"].files.items():
        assert file in text
        assert expected.sha256 in text
        assert f"{expected.tokens:,}" in text


@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
def test_standard_copies_check_out(real_data: Path, name: str) -> None:
    assert set(check(KNOWN[name], real_data / name).values()) == {"ok"}
