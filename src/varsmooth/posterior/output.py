"""How the output table's draw enters the loss: the three output rules (docs/maths.md, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError, check_choice
from varsmooth.ops.backend import Branch, kernels_for
from varsmooth.ops.draw_rows import GradientSink
from varsmooth.ops.linear_cross_entropy import aligned_rows, linear_cross_entropy
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
    sink: GradientSink | None = None,
    branch: Branch | None = None,
) -> OutputLoss:
    """Return the loss (eq. 9) of ``targets`` [T, B] given ``hidden`` [T, B, D], with the output table drawn from ``posterior``.

    ``none``: the table is dropped out only. ``table``: the whole table is a draw. ``target``: where ``replaced`` [T, B] (the
    input was replaced) the target's vector is that of another word, keyed by (sequence, target) or as ``scope`` says; no other
    logit changes. The table is one draw for the whole batch. ``words``: how many rows, the first, can be targets. ``sink``:
    where the table's gradient goes, if it is to be shared with other draws. ``branch``: made before ``hidden`` was computed, it
    lets the table be drawn meanwhile.
    """
    _check(hidden, targets, posterior, rule, replaced)
    drawn = posterior if rule == "table" else posterior.unsmoothed
    where = other = None
    if rule == "target" and replaced is not None and posterior.smooths:
        # Before the table, so that backward reaches the table first, which fills its gradient: the others only add to rows.
        other = posterior.score_replaced(hidden, targets, key, replaced, scope, first_sequence, sink=sink).view(-1)
        where = replaced.reshape(-1)
    words = len(posterior.weight) if words is None else words
    branch = Branch(hidden) if branch is None else branch
    with branch.work():
        table = drawn.sample(key, sink=sink, **_form_of_table(hidden, words))
    table = branch.join(table)
    losses = linear_cross_entropy(hidden.flatten(0, 1), table, bias, targets.reshape(-1), where, other, words)
    return OutputLoss(losses.view(targets.shape))


def _form_of_table(hidden: Tensor, words: int) -> dict[str, Any]:
    """A GPU multiplies in the precision of the hidden states, so nothing wider need be written; and it likes round numbers."""
    return {"rows": aligned_rows(words), "dtype": hidden.dtype} if kernels_for(hidden) else {"rows": words}


def _check(hidden: Tensor, targets: Tensor, posterior: EmbeddingPosterior, rule: OutputRule, replaced: Tensor | None) -> None:
    check_choice("rule", rule, get_args(OutputRule))
    if hidden.shape[:2] != targets.shape or hidden.shape[2] != posterior.weight.shape[1]:
        shapes = [tuple(tensor.shape) for tensor in (hidden, targets, posterior.weight)]
        raise InputError(f"hidden {shapes[0]} does not fit targets {shapes[1]} and a table {shapes[2]}")
    if rule == "target" and replaced is None:
        raise InputError("rule 'target' needs replaced: where the inputs were replaced (EmbeddingPosterior.replaced)")
