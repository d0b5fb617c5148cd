from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from varsmooth import InputError
from varsmooth.text import counts as counts_module
from varsmooth.text.counts import Counts

streams = st.lists(st.lists(st.integers(0, 6), max_size=40), max_size=6)


def by_hand(streams, vocab_size):
    unigram, after, before = Counter(), defaultdict(set), defaultdict(set)
    for stream in streams:
        unigram.update(stream)
        for left, right in itertools.pairwise(stream):
            after[left].add(right)
            before[right].add(left)
    return tuple(
        [size(word) for word in range(vocab_size)]
        for size in (lambda w: unigram[w], lambda w: len(after[w]), lambda w: len(before[w]))
    )


def as_lists(counts):
    return counts.unigram.tolist(), counts.distinct_after.tolist(), counts.distinct_before.tolist()


def test_six_word_corpus_counted_by_hand():
    #             a b a c a b d <- f (5) never follows anything but opens, e (4) never occurs
    ids = torch.tensor([5, 0, 1, 0, 2, 0, 1, 3])
    counts = Counts.from_ids(ids, 6)
    assert counts.unigram.tolist() == [3, 2, 1, 1, 0, 1]
    assert counts.distinct_after.tolist() == [2, 2, 1, 0, 0, 1]
    assert counts.distinct_before.tolist() == [3, 1, 1, 1, 0, 0]
    assert counts.unigram.dtype == torch.int64
    assert as_lists(Counts.from_ids(ids.tolist(), 6)) == as_lists(counts), "a list will do"


@given(streams)
def test_counts_agree_with_dictionaries_and_sets(streams):
    batches = [torch.tensor(stream, dtype=torch.int64) for stream in streams]
    assert as_lists(Counts.from_batches(batches, 7)) == by_hand(streams, 7)


@given(streams)
def test_contiguous_batches_are_one_stream(streams):
    batches = [np.array(stream, dtype=np.int32) for stream in streams]
    joined = [word for stream in streams for word in stream]
    assert as_lists(Counts.from_batches(batches, 7, contiguous=True)) == by_hand([joined], 7)


@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 9))
def test_pieces_smaller_than_the_stream_change_nothing(stream, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "PIECE", piece)
        assert as_lists(Counts.from_ids(np.array(stream, dtype=np.int64), 31)) == by_hand([stream], 31)


def test_batches_may_be_a_generator_and_leave_their_items_alone():
    original = np.array([2, 1, 0, 2], dtype=np.int64)
    counts = Counts.from_batches((item for item in [original]), 3)
    assert original.tolist() == [2, 1, 0, 2]
    assert counts.unigram.tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("ids", "vocab_size", "message"),
    [
        (torch.tensor([0, 3]), 3, "got 3"),
        (torch.tensor([-1, 0]), 3, "got -1"),
        (torch.tensor([[0, 1]]), 3, "1-D"),
        (torch.tensor([0.5]), 3, "integers"),
        (torch.tensor([0]), 0, "vocab_size"),
    ],
)
def test_bad_ids_are_named(ids, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        Counts.from_ids(ids, vocab_size)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (torch.zeros(2, 3, dtype=torch.long), r"shape \(2, 3\)"),
        ([[0, 1], [2]], "rows of different lengths"),
        ({"input_ids": [0, 1]}, "a dict"),
    ],
)
def test_batches_that_are_no_streams_are_told_how_to_become_some(batch, found):
    for count in (lambda: Counts.from_batches([batch], 3), lambda: Counts.from_ids(batch, 3)):
        with pytest.raises(InputError, match=rf"{found}.*from_batches.*without padding"):
            count()


def test_a_padded_batch_is_counted_as_its_error_says():
    rows, mask = torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    padded = Counts.from_batches((row[seen.bool()] for row, seen in zip(rows, mask, strict=True)), 3)
    assert as_lists(padded) == by_hand([[0, 1, 2], [2, 1]], 3)
    assert as_lists(padded) == as_lists(Counts.from_batches([[0, 1, 2], [2, 1]], 3))
