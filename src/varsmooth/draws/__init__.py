"""Randomness as a function: every choice is a hash of where it is made."""

from varsmooth.draws.generator import (
    COIN_BITS,
    LOW_32,
    DrawKey,
    Integers,
    Site,
    Stream,
    Words,
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

__all__ = [
    "COIN_BITS",
    "LOW_32",
    "DrawKey",
    "Integers",
    "Site",
    "Stream",
    "Words",
    "alias_table",
    "coin",
    "coin_threshold",
    "element_bits",
    "element_counter",
    "normal",
    "philox",
    "pick",
    "row_words",
]
