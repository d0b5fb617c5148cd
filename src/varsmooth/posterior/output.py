"""How the output table's draw enters the loss: the three output rules (docs/maths.md, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError, check_choice
from varsmooth.posterior.embedding import EmbeddingPosterior, Scope

OutputRule = Literal["none", "target", "table"]


@dataclass(frozen=True)
class OutputLoss:
    """Negative log-likelihoods of one window, in nats."""

    per_token: Tensor
    """[T, B]"""

    @property
    def tokens(self) -> int:
        return self.per_token.numel()

    @property
    def total(self) -> Tensor:
        return self.per_token.sum()

    @property
    def mean(self) -> Tensor:
        return self.per_token.mean()


def output_loss(
    hidden: Tensor,
    targets: Tensor,
    posterior: EmbeddingPosterior,
    bias: Tensor | None,
    key: DrawKey | int,
    *,
    rule: OutputRule = "none",
    replaced: Tensor | None = None,
    scope: Scope = "sequence",
    first_sequence: int = 0,
    words: int | None = None,
) -> OutputLoss:
    """Return the loss (eq. 9) of ``targets`` [T, B] given ``hidden`` [T, B, D], with the output table drawn from ``posterior``.

    ``none``: the table is dropped out only. ``table``: the whole table is a draw. ``target``: where ``replaced`` [T, B] (the
    input was replaced) the target's vector is that of another word, keyed by (sequence, target) or as ``scope`` says; no other
    logit changes. The table is one draw for the whole batch. ``words``: only the first so many rows can be targets.
    """
    _check(hidden, targets, posterior, rule, replaced)
    drawn = posterior if rule == "table" else posterior.unsmoothed
    logits = F.linear(hidden, drawn.sample(key)[:words], bias)
    if rule == "target" and replaced is not None and posterior.smooths:
        vectors = posterior.lookup_replaced(targets, key, scope, first_sequence)
        logits = _with_targets_replaced(logits, hidden, targets, vectors, bias, replaced)
    return OutputLoss(cross_entropy(logits, targets))


def _check(hidden: Tensor, targets: Tensor, posterior: EmbeddingPosterior, rule: OutputRule, replaced: Tensor | None) -> None:
    check_choice("rule", rule, get_args(OutputRule))
    if hidden.shape[:2] != targets.shape or hidden.shape[2] != posterior.weight.shape[1]:
        shapes = [tuple(tensor.shape) for tensor in (hidden, targets, posterior.weight)]
        raise InputError(f"hidden {shapes[0]} does not fit targets {shapes[1]} and a table {shapes[2]}")
    if rule == "target" and replaced is None:
        raise InputError("rule 'target' needs replaced: where the inputs were replaced (EmbeddingPosterior.replaced)")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each target, [T, B], in single precision."""
    flat = F.cross_entropy(logits.flatten(0, 1).float(), targets.reshape(-1), reduction="none")
    return flat.view(targets.shape)


def _with_targets_replaced(
    logits: Tensor, hidden: Tensor, targets: Tensor, vectors: Tensor, bias: Tensor | None, replaced: Tensor
) -> Tensor:
    """Give each replaced target the logit of its other vector; the bias stays the target's own."""
    other = (hidden * vectors).sum(-1)
    if bias is not None:
        other = other + bias[targets]
    own = logits.gather(-1, targets[..., None]).squeeze(-1)
    chosen = other.to(logits.dtype).where(replaced, own)
    return logits.scatter(-1, targets[..., None], chosen[..., None])
