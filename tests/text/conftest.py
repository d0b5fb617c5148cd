"""Fixtures for reading text: a tiny data folder, an ordinary user, and the real data sets where they are found."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
TEXTS = {"train": "the cat sat\non the mat\n", "valid": "the mat sat\n", "test": "on the cat\n"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's own cache or data."""
    monkeypatch.setenv("VARSMOOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VARSMOOTH_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a data folder; keyword arguments replace a split's text, None leaves it out."""

    def make(**changes: str | bytes | None) -> Path:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for split, text in {**TEXTS, **changes}.items():
            if text is not None:
                (folder / f"{split}.txt").write_bytes(text.encode() if isinstance(text, str) else text)
        return folder

    return make


@contextmanager
def _ordinary_user() -> Iterator[None]:
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no Unix permissions")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def ordinary_user() -> Callable[[], AbstractContextManager[None]]:
    """Make a context in which permissions bite, since they do not for root."""
    return _ordinary_user


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an ordinary user can reach, unlike those of ``tmp_path`` when root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="varsmooth-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with ``ptb/`` and ``wikitext-2/``; a test that asks for it is skipped without one."""
    candidates = [os.environ.get("VARSMOOTH_DATA"), Path(__file__).parents[3] / "shared" / "data"]
    for candidate in candidates:
        if candidate and all((Path(candidate) / name / "train.txt").is_file() for name in ("ptb", "wikitext-2")):
            return Path(candidate)
    pytest.skip("no copies of ptb and wikitext-2 here; set VARSMOOTH_DATA to test with them")
