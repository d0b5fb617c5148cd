"""Random choices as a pure function of where they are made (docs/maths.md, section 5).

Two generators, one inside the other:

- each *row* (seed, step, site, sequence, position, word) gets four 32-bit words from Philox4x32-10 (Salmon et al., 2011),
  which is checked against its published test vectors;
- each *element* of a row gets 32 bits from a two-multiply hash keyed by two of those words.

Rows are few, so they can afford the strong generator; elements are many, and the hash costs them a fifth as much. No state is
kept anywhere: the same coordinates give the same integers on every device, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

import torch
from torch import Tensor

from varsmooth.errors import InputError

LOW_32 = 0xFFFFFFFF
COIN_BITS = 24
"""Coins compare this many bits with a threshold, so that probabilities 0 and 1 are exact in 32-bit integers."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

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
    INITIAL = 6
    GENERATE = 7


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
            if isinstance(value, int) and not 0 <= value <= LOW_32:
                raise InputError(f"{name} must be in [0, 2**32), got {value}")

    @classmethod
    def of(cls, key: DrawKey | int) -> DrawKey:
        """Return ``key`` itself, or the key whose seed is the integer ``key``."""
        return key if isinstance(key, DrawKey) else cls(seed=key)

    def at(self, site: int) -> DrawKey:
        """Return the same key at another site."""
        return replace(self, site=int(site))


def philox(counter: tuple[Integers, ...], key: tuple[Integers, Integers]) -> tuple[Integers, ...]:
    """Return the four 32-bit words of Philox4x32-10; integers and int64 tensors mix freely and broadcast."""
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
    words = philox((word.long(), sequence, position, key.site), (key.seed, key.step))
    w0, w1, w2, w3 = (w if isinstance(w, Tensor) else torch.full_like(word, w) for w in words)
    return w0, w1, w2, w3


def element_bits(low: Tensor, high: Tensor, counter: Tensor) -> Tensor:
    """Return 32 random bits (as int32) for each row and element, keyed by the row's words ``low`` and ``high``.

    The arguments broadcast; ``counter`` comes from ``element_counter``. The second key enters between the rounds: two rows with
    first keys near each other would otherwise see the same bits a few dimensions apart. The high bits of the last product are
    the best mixed, and they are the ones that decide.
    """
    bits = counter + low.int()
    bits ^= _logical_shift(bits, 16)
    bits *= _signed(0x21F0AAAD)
    bits ^= _logical_shift(bits, 15)
    bits += high.int()
    bits *= _signed(0xD35A2D97)
    return bits


def element_counter(dimension: Tensor, stream: Stream) -> Tensor:
    """Return what distinguishes the elements of a row: the dimension and what its bits decide."""
    return (dimension.int() * 4 + int(stream)) * _signed(0x9E3779B9)


def coin(bits: Tensor) -> Tensor:
    """Return the top ``COIN_BITS`` bits of 32-bit words as a signed integer, to be held against ``coin_threshold``."""
    return bits.int() >> (32 - COIN_BITS)


def coin_threshold(probability: Tensor) -> Tensor:
    """Return the int32 threshold t for which ``coin(bits) < t`` has the given probability, exactly so at 0 and at 1."""
    return torch.round((probability.double() - 0.5) * (1 << COIN_BITS)).int()


def pick(bits: Tensor, threshold: Tensor, alias: Tensor) -> Tensor:
    """Return an index (int64) drawn by Walker's alias method from 32-bit words; see ``alias_table``."""
    slot_bits = threshold.numel().bit_length() - 1
    bits = bits.int()
    slot = (bits >> (32 - slot_bits)) & (threshold.numel() - 1) if slot_bits else torch.zeros_like(bits)
    own = (bits << slot_bits) < threshold.index_select(0, slot.view(-1)).view_as(slot)
    return torch.where(own, slot, alias.index_select(0, slot.view(-1)).view_as(slot)).long()


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


def normal(radius_bits: Tensor, angle_bits: Tensor) -> Tensor:
    """Return standard normal values by the Box-Muller transform of two streams of bits."""
    radius, angle = (coin(bits).float() * 2.0**-COIN_BITS + 0.5 for bits in (radius_bits, angle_bits))
    return (radius + 2.0 ** -(COIN_BITS + 1)).log().mul(-2).sqrt() * (angle * (2 * torch.pi)).cos()


def _wide_product(value: Integers, multiplier: int) -> tuple[Integers, Integers]:
    """Return the high and low halves of a 32 x 32 bit product; int64 wraps, but keeps all 64 bits."""
    product = value * multiplier
    return (product >> 32) & LOW_32, product & LOW_32


def _logical_shift(bits: Tensor, by: int) -> Tensor:
    """Shift int32 right without copying the sign."""
    return (bits >> by).bitwise_and_((1 << (32 - by)) - 1)


def _signed(constant: int) -> int:
    """Return the two's complement reading of an unsigned 32-bit constant."""
    return constant - (1 << 32) if constant >> 31 else constant
