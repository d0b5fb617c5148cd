"""Distinct bigrams on disk: the same counts as in memory, bounded, and gone afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.errors import InputError
from varsmooth.text import bigrams
from varsmooth.text import counts as counts_module
from varsmooth.text.counts import Counts

duckdb = pytest.importorskip("duckdb")


def same(found: Counts, expected: Counts) -> None:
    for name in ("unigram", "distinct_after", "distinct_before"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert getattr(found, name).dtype == torch.int64


@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 40), st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_counts_on_disk_are_those_in_memory(
    tmp_path_factory: pytest.TempPathFactory, stream: list[int], piece: int, sampled: int
) -> None:
    ids = np.array(stream, dtype=np.int32)
    cache = tmp_path_factory.mktemp("bigrams")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VARSMOOTH_CACHE", str(cache))
        patch.setattr(counts_module, "PIECE", piece)
        patch.setattr(bigrams, "PIECE", piece)
        patch.setattr(bigrams, "SAMPLED", sampled)
        same(Counts.from_ids(ids, 31, out_of_core=True), Counts.from_ids(ids, 31, out_of_core=False))
    assert list(cache.iterdir()) == []


def test_many_bigrams_in_many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "PIECE", 50_000)
    monkeypatch.setattr(bigrams, "PIECE", 20_000)
    ids = torch.randint(3000, (400_000,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    asked = []
    monkeypatch.setattr(bigrams._Neighbours, "add", spied(bigrams._Neighbours.add, asked))
    found = Counts.from_ids(ids, 3000, out_of_core=True)
    assert len(asked) > 15
    assert max(asked) < 25_000
    same(found, Counts.from_ids(ids, 3000, out_of_core=False))


def spied(method, asked):
    def add(self, codes):
        asked.append(codes.size)
        return method(self, codes)

    return add


def test_batches_may_be_streams_of_their_own_or_pieces_of_one() -> None:
    batches = [np.array(stream, dtype=np.int64) for stream in ([0, 1, 2], [], [2, 1], [0])]
    for contiguous in (True, False):
        found, expected = (
            Counts.from_batches(batches, 3, contiguous=contiguous, out_of_core=out_of_core) for out_of_core in (True, False)
        )
        same(found, expected)


def test_what_is_on_disk_goes_also_after_an_error(own_cache: Path) -> None:
    def batches():
        yield np.array([0, 1])
        assert [path.name.startswith("bigrams-") for path in own_cache.iterdir()] == [True]
        yield np.array([7])

    with pytest.raises(InputError, match="got 7"):
        Counts.from_batches(batches(), 3, out_of_core=True)
    assert list(own_cache.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_another_uses_stays(own_cache: Path) -> None:
    left = own_cache / "bigrams-left"
    left.mkdir(parents=True)
    (left / "lock").touch()
    with bigrams._scratch() as used:
        Counts.from_ids(np.array([0, 1]), 3, out_of_core=True)
        assert list(own_cache.iterdir()) == [used]
    assert list(own_cache.iterdir()) == []


def test_a_full_disk_is_one_clear_line(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise duckdb.IOException("could not write: No space left on device\nmore")

    monkeypatch.setattr(bigrams._OnDisk, "add", full)
    with pytest.raises(InputError) as caught:
        Counts.from_ids(np.array([0, 1]), 3, out_of_core=True)
    assert "No space left on device" in str(caught.value)
    assert "VARSMOOTH_CACHE" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(own_cache.iterdir()) == []


def test_no_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VARSMOOTH_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file: no folder can be made to count bigrams in"):
        Counts.from_ids(np.array([0, 1]), 3, out_of_core=True)


def test_memory_and_spilling_are_limited(tmp_path: Path) -> None:
    connection = duckdb.connect()
    bigrams._OnDisk(3, connection, tmp_path)
    limit, spilled = connection.execute("SELECT current_setting('memory_limit'), current_setting('temp_directory')").fetchone()
    assert limit == "256.0 MiB"
    assert spilled == str(tmp_path / "spilled")
    connection.close()


def test_size_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not bigrams.chosen_out_of_core(30_000_000, 50_000)
    assert bigrams.chosen_out_of_core(100_000_000, 50_000)
    assert not bigrams.chosen_out_of_core(10**9, 5_000)  # V x V bigrams at most
    monkeypatch.setattr(bigrams, "IN_MEMORY", 100)
    asked = []
    monkeypatch.setattr(bigrams, "_OnDisk", lambda *a: asked.append(a) or bigrams._InMemory(9))
    Counts.from_ids(np.arange(9), 9)
    assert len(asked) == 1
    Counts.from_ids(np.arange(3), 9)
    assert len(asked) == 1


def test_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError, match=r"needs DuckDB: pip install 'varsmooth\[data\]'"):
        Counts.from_ids(np.array([0, 1]), 3, out_of_core=True)
    monkeypatch.setattr(bigrams, "_machine_memory", lambda: 16 * 10**9)
    assert not bigrams.chosen_out_of_core(100_000_000, 50_000)  # a few gigabytes: in memory, as there is nothing else
    with pytest.raises(InputError, match=r"1,000,000,000 tokens may take 30 GB .* pip install 'varsmooth\[data\]'"):
        bigrams.chosen_out_of_core(10**9, 50_000)
