from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from statistics_for_tests import FAILURE_RATE, assert_independent, assert_uniform, chi_square_p
from varsmooth.draws import (
    LOW_32,
    DrawKey,
    Stream,
    alias_table,
    coin,
    coin_threshold,
    element_bits,
    element_counter,
    normal,
    philox,
    pick,
    row_words,
)

# From the known-answer tests that the authors of Philox publish with Random123 (philox4x32, 10 rounds).
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((LOW_32,) * 4, (LOW_32, LOW_32), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_vectors(counter, key, expected):
    assert philox(counter, key) == expected
    as_tensors = philox(tuple(torch.tensor([c, c]) for c in counter), tuple(torch.tensor(k) for k in key))
    assert [int(word[1]) for word in as_tensors] == list(expected)


def test_element_bits_are_pinned():
    """Runs of other versions and the kernels rely on these very integers."""
    dimension = torch.tensor([0, 1, 511], dtype=torch.int32)
    low, high = (torch.tensor([key]).int() for key in (0x12345678, 0x9ABCDEF0))
    bits = element_bits(low, high, element_counter(dimension, Stream.COIN))
    assert bits.tolist() == [_python_hash(0x12345678, 0x9ABCDEF0, 4 * d) for d in dimension.tolist()]


def test_arrays_and_tensors_give_the_same_bits():
    """The CPU draws with numpy and a GPU with torch; here both meet."""
    words = [word.int() for word in _words_at()]
    counter = element_counter(torch.arange(5, dtype=torch.int32), Stream.INDEX)
    bits = element_bits(words[2][:, None], words[3][:, None], counter)
    same = element_bits(words[2].numpy()[:, None], words[3].numpy()[:, None], counter.numpy())
    assert torch.equal(bits, torch.from_numpy(same))
    table = alias_table([0.2, 0.5, 0.3])
    picked = pick(same, *(part.numpy() for part in table))
    assert torch.equal(pick(bits, *table), torch.from_numpy(picked))
    as_tensors = philox((torch.arange(9, 9 + (1 << 14)), 2, 1, 0), (3, 5))
    for ours, theirs in zip(_words_at(), as_tensors, strict=True):
        assert torch.equal(ours, theirs)


def _python_hash(low: int, high: int, counter: int) -> int:
    x = (counter * 0x9E3779B9 + low) & LOW_32
    x ^= x >> 16
    x = x * 0x21F0AAAD & LOW_32
    x ^= x >> 15
    x = (x + high) * 0xD35A2D97 & LOW_32
    return x - (1 << 32) if x >> 31 else x


COORDINATES = ["seed", "step", "site", "sequence", "position", "word", "dimension", "stream"]


def _words_at(**coordinate):
    count = 1 << 14
    full = {"seed": 3, "step": 5, "site": 0, "sequence": 2, "position": 1, "word": 9} | coordinate
    key = DrawKey(full["seed"], full["step"], full["site"])
    return row_words(key, torch.arange(full["word"], full["word"] + count), full["sequence"], full["position"])


def _elements_at(dimension=0, stream=0, **coordinate):
    words = _words_at(**coordinate)
    counter = element_counter(torch.arange(dimension, dimension + 16, dtype=torch.int32), Stream(stream))
    return element_bits(words[2].int()[:, None], words[3].int()[:, None], counter)


@pytest.mark.parametrize("shift", [28, 20])
@pytest.mark.parametrize("coordinate", COORDINATES)
def test_neighbouring_coordinates_are_independent(coordinate, shift):
    start = {"dimension": 0, "stream": 0, "seed": 3, "step": 5, "site": 0, "sequence": 2, "position": 1, "word": 9}
    here, there = ((_elements_at(**{coordinate: start[coordinate] + by}) >> shift) & 15 for by in (0, 1))
    assert_independent(here, there, 16)


@pytest.mark.parametrize("coordinate", COORDINATES[:6])
@pytest.mark.parametrize("which", range(4))
def test_row_words_of_neighbours_are_independent(coordinate, which):
    start = {"seed": 3, "step": 5, "site": 0, "sequence": 2, "position": 1, "word": 9}
    here, there = (_words_at(**{coordinate: start[coordinate] + by})[which] >> 29 for by in (0, 1))
    assert_independent(here, there, 8)


def test_the_four_words_of_a_row_are_independent():
    words = _words_at()
    for i in range(4):
        for j in range(i):
            assert_independent(words[i] >> 29, words[j] >> 29, 8)


def test_elements_of_one_row_are_uniform_and_uncorrelated_at_every_lag():
    """One long row is where a weak hash would show: only the dimension changes."""
    dimension = torch.arange(1 << 18, dtype=torch.int32)
    bits = element_bits(*torch.tensor([[77], [0]], dtype=torch.int32), element_counter(dimension, Stream.COIN))
    assert_uniform(coin(bits) + (1 << 23) >> 14, 1 << 10)
    for lag in (1, 2, 3, 4, 7, 8, 16, 64, 128, 512, 1024):
        assert_independent((bits[:-lag] >> 28) & 15, (bits[lag:] >> 28) & 15, 16)


def test_each_bit_that_decides_flips_half_the_time_when_the_dimension_moves_by_one():
    words = _words_at()
    low, high = words[2].int(), words[3].int()
    here, there = (element_bits(low, high, element_counter(torch.tensor([d]).int(), Stream.COIN)) for d in (6, 7))
    flips = torch.stack([((here ^ there) >> bit & 1).float().mean() for bit in range(8, 32)])
    assert float((flips - 0.5).abs().max()) < 5 * 0.5 / math.sqrt(here.numel())


@pytest.mark.parametrize("probability", [0.0, 1e-6, 0.2, 0.5, 0.999, 1.0])
def test_coins_fall_with_their_probability_and_exactly_at_the_ends(probability):
    extremes = torch.tensor([0, 1, 0x7FFFFFFF, 0x80000000, LOW_32])
    threshold = coin_threshold(torch.tensor(probability))
    if probability in (0.0, 1.0):
        assert (coin(extremes.int()) < threshold).tolist() == [probability == 1.0] * 5
    words = torch.cat(_words_at())
    heads = int((coin(words.int()) < threshold).sum())
    deviation = math.sqrt(words.numel() * probability * (1 - probability))
    assert abs(heads - words.numel() * probability) <= 4.5 * deviation


def test_threshold_is_within_rounding_of_the_probability():
    probability = torch.linspace(0, 1, 1001, dtype=torch.float64)
    share = (coin_threshold(probability).double() + (1 << 23)) / (1 << 24)
    assert float((share - probability).abs().max()) <= 2**-25


@pytest.mark.parametrize("probs", [[1.0], [0.0, 1.0], [0.5, 0.0, 0.25, 0.25, 0.0], [1 / 7] * 7, [0.9, 0.1 - 1e-7, 1e-7]])
def test_alias_table_holds_exactly_the_probabilities(probs):
    threshold, alias = alias_table(probs)
    size = threshold.numel()
    own = (threshold.double() + 2**31) / 2**32
    own[alias == torch.arange(size)] = 1.0
    mass = torch.zeros(size, dtype=torch.float64).index_add_(0, torch.arange(size), own)
    mass.index_add_(0, alias.long(), 1 - own)
    expected = torch.zeros(size, dtype=torch.float64)
    expected[: len(probs)] = torch.tensor(probs, dtype=torch.float64)
    assert torch.allclose(mass / size, expected, atol=2**-31)


def test_pick_never_draws_an_index_of_probability_zero():
    probs = [0.0, 0.3, 0.0, 0.7, 0.0]
    edges = torch.tensor([0, 1, 0x1FFFFFFF, 0x20000000, 0x7FFFFFFF, 0x80000000, LOW_32])
    bits = torch.cat([edges, *_words_at()])
    assert set(pick(bits.int(), *alias_table(probs)).tolist()) <= {1, 3}


def test_pick_draws_a_zipfian_proposal():
    probs = 1 / torch.arange(1, 1001, dtype=torch.float64)
    probs /= probs.sum()
    bits = torch.cat([_elements_at(step=step, stream=Stream.INDEX).flatten() for step in range(4)])
    observed = torch.bincount(pick(bits, *alias_table(probs.tolist())), minlength=1000)
    assert chi_square_p(observed, probs * bits.numel()) > FAILURE_RATE


def test_normal_has_the_moments_of_a_standard_normal():
    words = _words_at()
    z = normal(words[0], words[1]).double()
    n = z.numel()
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - expected) < 4.5 * math.sqrt(variance / n)
    assert torch.isfinite(normal(torch.tensor([0x80000000, 0x7FFFFFFF, 0]), torch.zeros(3))).all()


def test_step_may_be_a_tensor_with_the_same_draws():
    word = torch.arange(10)
    for a, b in zip(row_words(DrawKey(1, 7), word), row_words(DrawKey(1, torch.tensor(7)), word), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("field", ["seed", "step", "site"])
@pytest.mark.parametrize("value", [-1, 1 << 32, 1.5, "a", None])
def test_keys_that_are_no_integers_in_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        DrawKey(**({"seed": 0} | {field: value}))


def test_an_integer_key_is_a_seed():
    assert DrawKey.of(7) == DrawKey(seed=7, step=0, site=0)
    for kind in (np.int32, np.uint8, np.uint64):
        for mine, plain in zip(
            row_words(DrawKey(kind(7)), torch.arange(3)), row_words(DrawKey(7), torch.arange(3)), strict=True
        ):
            assert torch.equal(mine, plain)
