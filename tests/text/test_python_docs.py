from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from varsmooth.errors import InputError
from varsmooth.text import UNK, open_corpus, python_docs
from varsmooth.text.python_docs import assign_splits, docstrings, module_prose, python_texts, source_files, split_texts

SOURCE = b'''"""The module has a docstring of words."""
raise SystemExit("this file was imported")

class Thing:
    """The class has a docstring of words."""

    async def method(self):
        """The method has a docstring of words."""

def function():
    "The \\d function has a docstring of words."
    """This is no docstring of any function."""
'''


@pytest.fixture(scope="session")
def prose() -> dict[str, list[str]]:
    return module_prose(source_files(Path(sysconfig.get_path("stdlib"))))


@pytest.fixture
def tiny_stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of three modules, so that building the corpus takes no time."""
    stdlib = tmp_path / "stdlib"
    (stdlib / "json" / "tests").mkdir(parents=True)
    (stdlib / "site-packages").mkdir()
    for module in ("json/__init__", "json/tests/test_it", "site-packages/other", "abc", "notstdlib"):
        (stdlib / f"{module}.py").write_text(f'"""These are the words of the module {module.replace("/", " ")}."""\n')
    (stdlib / "os.py").write_bytes(SOURCE)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(stdlib))
    return stdlib


def test_docstrings_in_source_order() -> None:
    assert [text.split()[1] for text in docstrings(SOURCE)] == ["module", "class", "method", "\\d"]


@pytest.mark.parametrize("source", [b"def broken(:", b"\xff\xfe", b"x = '\0'", b""])
def test_files_that_do_not_parse_have_no_docstrings(source: bytes) -> None:
    assert docstrings(source) == []


def test_only_modules_of_the_standard_library_are_read(tiny_stdlib: Path) -> None:
    assert set(source_files(tiny_stdlib)) == {"json", "abc", "os"}


def test_enough_prose_in_eight_one_one(prose: dict[str, list[str]]) -> None:
    sizes = {split: len(text.split()) + text.count("\n") for split, text in split_texts(prose).items()}
    total = sum(sizes.values())
    assert total > 100_000
    assert 0.75 < sizes["train"] / total < 0.88
    assert 0.06 < sizes["valid"] / total < 0.15
    assert 0.06 < sizes["test"] / total < 0.15


def test_splits_share_no_module_and_no_sentence(prose: dict[str, list[str]]) -> None:
    modules = assign_splits(prose)
    names = [name for split in modules.values() for name in split]
    assert sorted(names) == sorted(prose)
    assert len(set(names)) == len(names)
    texts = {split: set(text.splitlines()) for split, text in split_texts(prose).items()}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["valid"]
    assert not texts["valid"] & texts["test"]


def test_no_tests_no_bundled_packages(prose: dict[str, list[str]]) -> None:
    parts = {part for module in prose for part in module.split(".")}
    assert {"argparse", "json"} <= parts
    assert not parts & {"test", "tests", "idle_test", "site-packages", "_bundled", "pip", "torch"}


def test_it_is_prose(prose: dict[str, list[str]]) -> None:
    words = [word for lines in prose.values() for line in lines for word in line.split()]
    assert all(word == "N" or word == word.lower() for word in words)
    assert not {">>>", "=", "[", "{"} & set(words)
    assert words.count("the") > 0.04 * len(words)


@pytest.mark.slow
def test_same_in_another_process(prose: dict[str, list[str]]) -> None:
    program = (
        "import hashlib, sysconfig; from pathlib import Path; from varsmooth.text.python_docs import *; "
        "texts = split_texts(module_prose(source_files(Path(sysconfig.get_path('stdlib'))))); "
        "print(hashlib.sha256(repr(texts).encode()).hexdigest())"
    )
    seeds = {**os.environ, "PYTHONHASHSEED": "4321"}
    other = subprocess.run([sys.executable, "-c", program], env=seeds, capture_output=True, text=True, check=True, timeout=120)
    assert other.stdout.strip() == hashlib.sha256(repr(split_texts(prose)).encode()).hexdigest()


def test_nothing_is_imported(tiny_stdlib: Path) -> None:
    assert "the method has a docstring of words ." in "".join(python_texts().values())


def test_cache_is_used_and_refreshed(tiny_stdlib: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = python_texts()
    assert [path.suffix for path in own_cache.iterdir()] == [".json"]
    monkeypatch.setattr(python_docs, "module_prose", lambda _: {"os": ["built anew"]})
    assert python_texts() == texts
    for kept in own_cache.iterdir():
        kept.unlink()
    assert python_texts()["train"] == "built anew\n"


def test_changed_sources_are_read_again(tiny_stdlib: Path, own_cache: Path) -> None:
    before = python_texts()
    (tiny_stdlib / "abc.py").write_text('"""These are now other words of that module."""')
    assert python_texts() != before
    assert len(list(own_cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda _: b"[]",
        lambda _: b"[" * 100_000,
        lambda data: data.replace(b"words", b"sword"),
        lambda _: json.dumps({"sha256": "0", "texts": None}).encode(),
        lambda data: b"\xff" + data,
    ],
)
def test_damaged_cache_is_rebuilt(tiny_stdlib: Path, own_cache: Path, damage: Callable[[bytes], bytes]) -> None:
    texts = python_texts()
    (cached,) = own_cache.iterdir()
    sound = cached.read_bytes()
    cached.write_bytes(damage(sound))
    assert python_texts() == texts
    assert cached.read_bytes() == sound


def test_unwritable_cache_means_no_cache(
    tiny_stdlib: Path,
    open_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    ordinary_user: Callable[[], AbstractContextManager[None]],
) -> None:
    texts = python_texts()
    stdlib = tiny_stdlib.rename(open_folder / "stdlib")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(stdlib))
    closed = open_folder / "closed"
    closed.mkdir(mode=0o500)
    monkeypatch.setenv("VARSMOOTH_CACHE", str(closed / "cache"))
    with ordinary_user():
        assert python_texts() == texts
    assert list(closed.iterdir()) == []


def test_no_sources_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(InputError, match="needs the standard library's source files"):
        open_corpus("python")


def test_open_corpus_makes_rare_words_unknown(prose: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "module_prose", lambda _: prose)
    corpus = open_corpus("python")
    assert UNK in corpus.vocab
    assert 2_000 < len(corpus.vocab) < 8_000
    assert corpus.train.bincount(minlength=len(corpus.vocab)).min() >= python_docs.MIN_COUNT
    small = open_corpus("python", max_tokens=20_000, max_words=500, min_count=1)
    assert 19_900 < len(small.train) <= 20_000
    assert small.train[-1] == small.vocab.eos_id
    assert len(small.vocab) == 500
