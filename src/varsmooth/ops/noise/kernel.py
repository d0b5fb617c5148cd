"""Inputs and labels of a window in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.draws.kernel import as_tensor, coin, pick, row_bits
from varsmooth.ops.places import Places
from varsmooth.proposal import Proposal

BLOCK = 128


@triton.jit(do_not_specialize=["rows", "columns", "sequence", "site", "seed"])
def noise_kernel(
    inputs,
    targets,
    noised,
    labels,
    replace_below,
    threshold,
    alias,
    step,
    rows,
    columns,
    sequence,
    site,
    seed,
    slot_bits: tl.constexpr,
    block: tl.constexpr,
):
    n = tl.program_id(0) * block + tl.arange(0, block)
    inside = n < rows
    w0, w1, w2, _ = row_bits(n * 0, sequence + n % columns, n // columns, site, seed, tl.load(step))
    word = tl.load(inputs + n, mask=inside, other=0)
    below = tl.load(replace_below + word, mask=inside, other=0)
    replaced = inside & (coin(w0.to(tl.int32, bitcast=True)) < below)
    other = pick(w1.to(tl.int32, bitcast=True), threshold, alias, slot_bits, replaced)
    tl.store(noised + n, tl.where(replaced, other, word), mask=inside)
    if targets is not None:
        label = tl.load(targets + n, mask=inside, other=0)
        other = pick(w2.to(tl.int32, bitcast=True), threshold, alias, slot_bits, replaced)
        tl.store(labels + n, tl.where(replaced, other, label), mask=inside)


def noise(
    inputs: Tensor, targets: Tensor | None, proposal: Proposal, key: DrawKey, places: Places
) -> tuple[Tensor, Tensor | None]:
    """As the reference of this name; every position has a place of its own."""
    inputs, targets = inputs.contiguous(), None if targets is None else targets.contiguous()
    noised, labels = torch.empty_like(inputs), None if targets is None else torch.empty_like(targets)
    threshold, alias = proposal.alias_table
    if rows := inputs.numel():
        noise_kernel[(triton.cdiv(rows, BLOCK),)](
            inputs,
            targets,
            noised,
            labels,
            proposal.replace_below,
            threshold,
            alias,
            as_tensor(key.step, inputs.device),
            rows,
            places.columns,
            places.sequence,
            int(key.site),
            key.seed,
            len(threshold).bit_length() - 1,
            BLOCK,
        )
    return noised, labels
