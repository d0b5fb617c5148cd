"""The definition in plain torch, and the CPU path."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear_cross_entropy(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    replaced: Tensor | None = None,
    other: Tensor | None = None,
) -> Tensor:
    """As the operation of this name; the logits are in the dtype of ``hidden`` (or autocast's), the loss in float32."""
    logits = F.linear(hidden, table.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))
    if replaced is not None and other is not None:
        logits = _with_targets_replaced(logits, bias, targets, replaced, other)
    return F.cross_entropy(logits.float(), targets, reduction="none")


def _with_targets_replaced(logits: Tensor, bias: Tensor | None, targets: Tensor, replaced: Tensor, other: Tensor) -> Tensor:
    """Give each replaced target its other logit; the bias stays the target's own."""
    if bias is not None:
        other = other + bias[targets]
    own = logits.gather(-1, targets[:, None]).squeeze(-1)
    chosen = other.to(logits.dtype).where(replaced, own)
    return logits.scatter(-1, targets[:, None], chosen[:, None])
