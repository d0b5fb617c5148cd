"""Makes a proposal fit a table: rows that are padding, and words that must stay as they are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from varsmooth.errors import InputError
from varsmooth.proposal import Proposal

ROUNDING = 128
"""Tables are rounded up to at most this multiple; more rows than that are taken for a mistake unless announced."""


def special_ids_of(tokenizer: Any) -> list[int]:
    """Return the ids of a tokenizer's special tokens: padding, mask, begin and end of text and any that it marks as special.

    Not that of the unknown word, which is a word, unless the token has another role too. Works with the tokenizers of
    transformers.
    """
    if not hasattr(tokenizer, "special_tokens_map"):
        raise InputError(f"special_ids_of needs a tokenizer of transformers, got {type(tokenizer).__name__}; name ids yourself")
    named = {str(token) for name, token in tokenizer.special_tokens_map.items() if name != "unk_token"}
    marked = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    unknown = {str(tokenizer.special_tokens_map.get("unk_token"))}
    tokens = named | ((marked | set(tokenizer.all_special_tokens)) - unknown)
    return sorted({index for index in tokenizer.convert_tokens_to_ids(list(tokens)) if index is not None})


def special_rows(ids: Iterable[int], embedding: nn.Embedding) -> list[int]:
    """Return the special ids, sorted, and with them the embedding's own ``padding_idx``."""
    rows, own = len(embedding.weight), [] if embedding.padding_idx is None else [embedding.padding_idx]
    try:
        found = sorted({int(index) for index in chain(ids, own)})
    except (TypeError, ValueError):
        raise InputError(
            "special_ids must be integers, as special_ids_of(tokenizer) finds them; a token that the tokenizer lacks has the "
            "id None: leave it out"
        ) from None
    if found and not 0 <= found[0] <= found[-1] < rows:
        culprit = found[0] if found[0] < 0 else found[-1]
        raise InputError(f"special_ids must be in [0, {rows}), the rows of the table; got {culprit}")
    return found


def without(proposal: Proposal, special: Iterable[int]) -> Proposal:
    """Return the proposal in which the ``special`` words are never replaced and never proposed.

    Rows of the table that the proposal has no word for are so anyway.
    """
    words = [index for index in special if index < proposal.vocab_size]
    if not words:
        return proposal
    left_out = torch.tensor(words, device=proposal.rate.device)
    rate = proposal.rate.index_fill(0, left_out, 0.0)
    probs = proposal.probs.double().index_fill(0, left_out, 0.0)
    total = probs.sum()
    if bool(rate.any()) and float(total) <= 0:
        raise InputError("special_ids and padding_idx leave the proposal no word to propose; check what it was made of")
    return Proposal(rate, (probs / total.clamp(min=1e-30)).to(proposal.probs.dtype), proposal.noises_output)


def fitted(proposal: Proposal | None, rows: int, table: str, padding: int | None) -> tuple[Proposal | None, int]:
    """Return the proposal for a table of ``rows`` rows, and how many of these are padding, which no word stands for."""
    if padding is not None and padding < 0:
        raise InputError(f"padding must be at least 0, got {padding}")
    if proposal is None:
        return None, 0
    words = proposal.vocab_size
    extra = rows - words
    if extra < 0:
        raise InputError(
            f"{table} has {rows} rows, the proposal {words} words; count with vocab_size={rows}, or enlarge the table"
        )
    if padding is not None and extra not in (0, padding):
        raise InputError(
            f"padding={padding}, but {table} has {extra} rows more than the proposal has words ({rows} and {words})"
        )
    if padding is None and extra >= ROUNDING:
        raise InputError(
            f"{table} has {rows} rows, the proposal {words} words: {extra} rows would be padding; "
            f"say so with padding={extra}, or count with vocab_size={rows}"
        )
    if extra == 0:
        return proposal, 0
    return Proposal(_padded(proposal.rate, extra), _padded(proposal.probs, extra), proposal.noises_output), extra


def _padded(values: Tensor, extra: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, extra))
