"""The generator inside kernels gives the integers of the eager one; without a GPU in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from varsmooth.draws import DrawKey, Stream, alias_table, coin, element_bits, element_counter, generator, pick, row_words

pytest.importorskip("triton")

import triton
import triton.language as tl

from varsmooth.draws import kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST = 2**32 - 1
SIZE = 64


@triton.jit
def _elements_kernel(low, high, bits, coins, stream: tl.constexpr, size: tl.constexpr):
    place = tl.arange(0, size)
    found = kernel.element_bits(tl.load(low + place).to(tl.uint32), tl.load(high + place).to(tl.uint32), place, stream)
    tl.store(bits + place, found)
    tl.store(coins + place, kernel.coin(found))


@triton.jit
def _pick_kernel(bits, threshold, alias, wanted, out, slot_bits: tl.constexpr, size: tl.constexpr):
    place = tl.arange(0, size)
    mask = tl.load(wanted + place) != 0
    tl.store(out + place, kernel.pick(tl.load(bits + place), threshold, alias, slot_bits, mask))


def _words(*shape: int, seed: int = 0) -> torch.Tensor:
    found = torch.randint(2**32, shape, generator=torch.Generator().manual_seed(seed))
    found.view(-1)[:3] = torch.tensor([0, LAST, 1 << 31])[: found.numel()]
    return found


@pytest.mark.parametrize(("seed", "step", "site"), [(0, 0, 0), (7, 3, 1), (LAST, LAST, 7), (1 << 31, 5, 2), (5, 1 << 31, 4)])
def test_row_words_are_those_of_the_generator(seed, step, site):
    word, sequence = _words(5, 1), _words(7, seed=1) % 1000
    key = DrawKey(seed, step, site)
    ours = kernel.row_words(key, word.to(DEVICE), sequence.to(DEVICE), 3)
    for name, found, expected in zip("0123", ours, row_words(key, word, sequence, 3), strict=True):
        assert torch.equal(found.cpu(), expected), f"word {name}"


def test_a_step_on_the_device_is_read_there():
    word = torch.arange(9)
    for step in (0, LAST):
        key = DrawKey(1, torch.tensor(step, device=DEVICE))
        for ours, theirs in zip(kernel.row_words(key, word.to(DEVICE)), row_words(DrawKey(1, step), word), strict=True):
            assert torch.equal(ours.cpu(), theirs)


def test_no_rows_have_no_words():
    assert [tuple(word.shape) for word in kernel.row_words(DrawKey(1), torch.zeros(0, 3, dtype=torch.int64))] == [(0, 3)] * 4


@pytest.mark.parametrize("stream", list(Stream))
def test_element_bits_and_coins_are_those_of_the_generator(stream):
    low, high = _words(SIZE), _words(SIZE, seed=1)
    bits, coins = (torch.zeros(SIZE, dtype=torch.int32, device=DEVICE) for _ in range(2))
    _elements_kernel[(1,)](low.to(DEVICE), high.to(DEVICE), bits, coins, int(stream), SIZE)
    expected = element_bits(low.int(), high.int(), element_counter(torch.arange(SIZE, dtype=torch.int32), stream))
    assert torch.equal(bits.cpu(), expected)
    assert torch.equal(coins.cpu(), coin(expected))


@pytest.mark.parametrize("probs", [[1.0], [0.0, 1.0], [0.5, 0.0, 0.25, 0.25, 0.0], [1 / 700] * 700])
def test_picks_are_those_of_the_generator_and_only_where_asked(probs):
    bits = _words(SIZE).int()
    threshold, alias = alias_table(probs)
    expected = pick(bits, threshold, alias)
    assert torch.equal(_picked(bits, threshold, alias, torch.ones(SIZE)), expected)
    wanted = torch.arange(SIZE) % 2
    assert torch.equal(_picked(bits, threshold, alias, wanted), expected * wanted)


def _picked(bits: torch.Tensor, threshold: torch.Tensor, alias: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    out = torch.full((SIZE,), -1, dtype=torch.int32, device=DEVICE)
    slot_bits = len(threshold).bit_length() - 1
    tensors = (part.to(DEVICE) for part in (bits, threshold, alias, wanted.int()))
    _pick_kernel[(1,)](*tensors, out, slot_bits, SIZE)
    return out.cpu()


@pytest.mark.gpu
def test_the_generator_takes_the_kernel_on_a_gpu(monkeypatch):
    word = torch.arange(5, device="cuda")
    expected = row_words(DrawKey(3, 4), word.cpu(), 2, 1)
    monkeypatch.setattr(generator, "philox", None)
    for ours, theirs in zip(row_words(DrawKey(3, 4), word, 2, 1), expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)
