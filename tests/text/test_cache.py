from __future__ import annotations

from pathlib import Path

import pytest

from varsmooth.text.cache import cache_folder, load_texts, store_texts

TEXTS = {"train": "a\n", "valid": "b\n", "test": "c\n"}


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARSMOOTH_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("VARSMOOTH_CACHE")
    assert cache_folder() == Path("/shared/varsmooth")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path("/home/someone/.cache/varsmooth")


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("VARSMOOTH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None
    store_texts("x", TEXTS)
    assert load_texts("x") is None


def test_stored_texts_come_back(own_cache: Path) -> None:
    assert load_texts("x") is None
    store_texts("x", TEXTS)
    assert load_texts("x") == TEXTS
    assert [path.name for path in own_cache.iterdir()] == ["x"]
