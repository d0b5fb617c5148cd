"""Random choices as a pure function of where they are made (docs/maths.md, section 5).

Two generators, one inside the other:

- each *row* (seed, step, site, sequence, position, word) gets four 32-bit words from Philox4x32-10 (Salmon et al., 2011),
  which is checked against its published test vectors;
- each *element* of a row gets 32 bits from a two-multiply hash keyed by two of those words.

Rows are few, so they can afford the strong generator; elements are many, and get one that takes a tenth of its operations. No
state is kept anywhere: the same coordinates give the same integers on every device, in any order.

Both are written once, in operators that torch tensors and numpy arrays share: on the CPU numpy runs them, whose calls cost a
third of torch's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varsmooth.errors import InputError

LOW_32 = 0xFFFFFFFF
COIN_BITS = 24
"""Coins compare this many bits with a threshold, so that probabilities 0 and 1 are exact in 32-bit integers."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Array = TypeVar("Array", Tensor, NDArray[np.int32])
"""Int32 words as a torch tensor or a numpy array: what goes in comes out."""
Integers: TypeAlias = "int | Tensor"
Words: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class Site(IntEnum):
    """The place where a choice is made; different sites never share a draw."""

    INPUT = 0
    OUTPUT = 1
    RECURRENT = 2
    RECURRENT_VARIANCE = 3
    NOISING = 4
    OFFSET = 5
    GENERATE = 7  # 6 was never drawn from; a number that changed would change draws
    INPUT_ACTIVATION = 8
    OUTPUT_ACTIVATION = 9
    PART_OF_STREAM = 10


class Stream(IntEnum):
    """What an element's bits decide; different streams never share bits."""

    COIN = 0
    INDEX = 1
    RADIUS = 2
    ANGLE = 3


@dataclass(frozen=True)
class DrawKey:
    """What every draw of one forward pass shares: ``seed``, training ``step`` and ``site``.

    ``step`` may be a 0-d integer tensor, so that a captured CUDA graph can advance it.
    """

    seed: int
    step: Integers = 0
    site: int = 0

    def __post_init__(self) -> None:
        for name in ("seed", "step", "site"):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                continue
            if not isinstance(value, (int, np.integer)):
                raise InputError(f"{name} must be an integer, got {value!r}")
            if not 0 <= value <= LOW_32:
                raise InputError(f"{name} must be in [0, 2**32), got {value}")
            if not isinstance(value, int):
                object.__setattr__(self, name, int(value))

    @classmethod
    def of(cls, key: DrawKey | int) -> DrawKey:
        """Return ``key`` itself, or the key whose seed is the integer ``key``."""
        return key if isinstance(key, DrawKey) else cls(seed=key)

    def at(self, site: int) -> DrawKey:
        """Return the same key at another site."""
        return replace(self, site=int(site))


def philox(counter: tuple[Any, ...], key: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return the four 32-bit words of Philox4x32-10; integers mix freely with int64 tensors or arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _wide_product(c0, _MULTIPLIERS[0])
        high1, low1 = _wide_product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & LOW_32, (k1 + _WEYL[1]) & LOW_32
    return c0, c1, c2, c3


def row_words(key: DrawKey, word: Tensor, sequence: Integers = 0, position: Integers = 0) -> Words:
    """Return four int64 tensors of 32-bit words for each row; coordinates that do not apply are 0.

    The result has the broadcast shape of ``word``, ``sequence`` and ``position``.
    """
    if word.device.type != "cpu":
        return _row_words_elsewhere(key, word, sequence, position)
    # At least 1-D, because numpy wraps silently in arrays and warns about scalars.
    row, *place = (
        np.atleast_1d(part.numpy()) if isinstance(part, Tensor) else part for part in (word.long(), sequence, position)
    )
    found = philox((row, *place, int(key.site)), (key.seed, int(key.step)))
    shape = np.broadcast_shapes(*(part.shape for part in (word, sequence, position) if isinstance(part, Tensor)))
    w0, w1, w2, w3 = (torch.from_numpy(part).view(shape) for part in found)
    return w0, w1, w2, w3


def _row_words_elsewhere(key: DrawKey, word: Tensor, sequence: Integers, position: Integers) -> Words:
    """On a GPU in one launch, where Triton is at hand; else in some hundred."""
    if word.is_cuda and find_spec("triton") is not None:
        from varsmooth.draws.kernel import row_words as launch

        return launch(key, word, sequence, position)
    w0, w1, w2, w3 = philox((word.long(), sequence, position, key.site), (key.seed, key.step))
    return w0, w1, w2, w3


def element_bits(low: Array, high: Array, counter: Array) -> Array:
    """Return 32 random bits for each row and element, keyed by the row's words ``low`` and ``high``; all int32, broadcasting.

    ``counter`` comes from ``element_counter``. The second key enters between the rounds: two rows with first keys near each
    other would otherwise see the same bits a few dimensions apart. The high bits of the last product are the best mixed, and
    they are the ones that decide.
    """
    bits = counter + low
    _fold(bits, 16)
    bits *= _signed(0x21F0AAAD)
    _fold(bits, 15)
    bits += high
    bits *= _signed(0xD35A2D97)
    return bits


def _fold(bits: Array, by: int) -> None:
    """Xor, in place, the high bits onto the low ones: a logical shift, which int32 has only after a mask."""
    if isinstance(bits, np.ndarray):
        unsigned = bits.view(np.uint32)
        unsigned ^= unsigned >> by
    else:
        bits ^= (bits >> by) & ((1 << (32 - by)) - 1)


def element_counter(dimension: Array, stream: Stream) -> Array:
    """Return what distinguishes the elements of a row (int32): the dimension and what its bits decide."""
    return (dimension * 4 + int(stream)) * _signed(0x9E3779B9)


def coin(bits: Array) -> Array:
    """Return the top ``COIN_BITS`` bits of int32 words as a signed integer, to be held against ``coin_threshold``."""
    return bits >> (32 - COIN_BITS)


def coin_threshold(probability: Tensor) -> Tensor:
    """Return the int32 threshold t for which ``coin(bits) < t`` has the given probability, exactly so at 0 and at 1."""
    return torch.round((probability.double() - 0.5) * (1 << COIN_BITS)).int()


def pick(bits: Array, threshold: Array, alias: Array) -> Array:
    """Return an index (int32) drawn by Walker's alias method from int32 words; see ``alias_table``."""
    size = len(threshold)
    slot_bits = size.bit_length() - 1
    # In two steps, because a table of one slot would ask for a shift by 32.
    slot = (bits >> (31 - slot_bits) >> 1) & (size - 1)
    other = (bits << slot_bits) >= threshold[slot]
    # A product instead of a choice: half the outcomes are surprises to a branch.
    picked: Array = slot + (alias[slot] - slot) * other
    return picked


def alias_table(probs: list[float]) -> tuple[Tensor, Tensor]:
    """Return thresholds and aliases (int32) for ``pick``, padded to a power of two.

    The top bits of a word choose the slot, the others the side of its threshold. Built in exact integers, so that an index of
    probability 0 is never drawn and no mass is lost to rounding.
    """
    size = 1 << (len(probs) - 1).bit_length()
    full = 1 << 32
    mass = [round(p * size * full) for p in probs] + [0] * (size - len(probs))
    mass[max(range(size), key=mass.__getitem__)] += size * full - sum(mass)
    threshold, alias = [full - 1] * size, list(range(size))
    small = [i for i, m in enumerate(mass) if m < full]
    large = [i for i, m in enumerate(mass) if m > full]
    while small:
        poor, rich = small.pop(), large[-1]
        threshold[poor], alias[poor] = mass[poor], rich
        mass[rich] -= full - mass[poor]
        if mass[rich] <= full:
            large.pop()
            if mass[rich] < full:
                small.append(rich)
    half = 1 << 31
    return torch.tensor([t - half for t in threshold], dtype=torch.int32), torch.tensor(alias, dtype=torch.int32)


def bits_of_rows(words: Words, width: int, stream: Stream) -> Tensor:
    """Return 32 bits for each of ``width`` elements of each row."""
    counter = element_counter(torch.arange(width, dtype=torch.int32, device=words[2].device), stream)
    return element_bits(words[2].int()[..., None], words[3].int()[..., None], counter)


def normals_of_rows(words: Words, width: int) -> Tensor:
    """Return a standard normal value for each of ``width`` elements of each row."""
    return normal(bits_of_rows(words, width, Stream.RADIUS), bits_of_rows(words, width, Stream.ANGLE))


def normal(radius_bits: Tensor, angle_bits: Tensor) -> Tensor:
    """Return standard normal values by the Box-Muller transform of two streams of bits."""
    radius, angle = (coin(bits.int()).float() * 2.0**-COIN_BITS + 0.5 for bits in (radius_bits, angle_bits))
    return (radius + 2.0 ** -(COIN_BITS + 1)).log().mul(-2).sqrt() * (angle * (2 * torch.pi)).cos()


def _wide_product(value: Any, multiplier: int) -> tuple[Any, Any]:
    """Return the high and low halves of a 32 x 32 bit product; int64 wraps, but keeps all 64 bits."""
    product = value * multiplier
    return (product >> 32) & LOW_32, product & LOW_32


def _signed(constant: int) -> int:
    """Return the two's complement reading of an unsigned 32-bit constant."""
    return constant - (1 << 32) if constant >> 31 else constant
