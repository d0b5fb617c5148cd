"""The output layer over hidden states that are already there: a few rows of logits at a time, whatever the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from varsmooth.evaluate.perplexity import Scales

LOGIT_BYTES = 1 << 27
"""Logits held at once, at most: what bounds the memory of an evaluation, whatever the stream and the vocabulary."""
CHUNK_BYTES = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Logits held at once where words are few: what a CPU's cache keeps, and what keeps a GPU busy."""
FEW_ROWS = 64
"""Fewer than this are a poor use of a pass over a large output table."""


def rows_at_once(words: int, device: torch.device) -> int:
    """Return how many tokens' logits to hold at once."""
    row = 4 * words
    wanted = max(CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // row, FEW_ROWS)
    return max(1, min(wanted, LOGIT_BYTES // row))


def logit_chunks(hidden: Tensor, targets: Tensor, table: Tensor, bias: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits [n, words] and targets [n] of hidden states [rows, D]; the logits may be overwritten."""
    rows = rows_at_once(bias.numel(), bias.device)
    for some_hidden, some_targets in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        yield F.linear(some_hidden, table[: bias.numel()], bias).float(), some_targets


def tells_words_apart(hidden: Tensor, table: Tensor) -> bool:
    """Whether what hidden states [rows, D] say of words differs by more than rounding, anywhere.

    By the mean of a table all of whose words are always replaced it does not: all its rows are one.
    """
    rounding = 4 * torch.finfo(hidden.dtype).eps * table.norm(dim=-1).max()
    for some in torch.split(hidden, rows_at_once(len(table), table.device)):
        low, high = F.linear(some, table).aminmax(dim=-1)
        if bool((high - low > rounding * some.norm(dim=-1)).any()):
            return True
    return False


def target_nll(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the loss [n] of each target; overwrites the logits."""
    if temperature != 1:
        logits.div_(temperature)
    return F.cross_entropy(logits, targets, reduction="none")


def scaled_logits(logits: Tensor, bias: Tensor, scales: Scales) -> Tensor:
    """Return logits [..., words] with the context's part and the bias scaled; overwrites them."""
    return logits.sub_(bias).mul_(scales.context).add_(bias, alpha=scales.bias)


def scaled_nll(logits: Tensor, targets: Tensor, bias: Tensor, scales: Scales) -> Tensor:
    """Return the loss [n] of each target with scales; overwrites the logits."""
    return F.cross_entropy(scaled_logits(logits, bias, scales), targets, reduction="none")


def scale_terms(logits: Tensor, targets: Tensor, bias: Tensor, scales: Scales) -> Tensor:
    """Return each loss, its two derivatives by the scales and its three second ones [6, n]; overwrites the logits."""
    context = logits.sub_(bias)
    scaled = (scales.context * context).add_(bias, alpha=scales.bias)
    loss = F.cross_entropy(scaled, targets, reduction="none")
    probs = scaled.softmax(-1)
    own = context.gather(-1, targets[:, None])[:, 0]
    mean, mean_bias = (probs * context).sum(-1), probs @ bias
    centred = context.sub_(mean[:, None])
    weighted = probs * centred
    second = weighted.mul(centred).sum(-1), weighted @ bias, probs @ bias.square() - mean_bias.square()
    return torch.stack([loss, mean - own, mean_bias - bias[targets], *second])
