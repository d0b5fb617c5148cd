"""q, the distribution over an embedding table (docs/maths.md, section 2)."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, SupportsFloat, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError, check_choice
from varsmooth.ops.draw_rows import DrawPlan, GradientSink, Places, draw_rows, replaced_words
from varsmooth.ops.places import check_ids
from varsmooth.ops.score_others import score_others
from varsmooth.posterior.kl import KLForm, kl_weights
from varsmooth.proposal import Proposal

Granularity = Literal["word", "element"]
Scope = Literal["sequence", "batch", "position"]
Predict = Literal["mode", "mean", "mean-input"]
"""By which tables a model predicts: as they are, by their means, or by that of the input alone."""


class EmbeddingPosterior:
    """The mixture q of eq. 2 over the table ``weight`` [V, D]; ``proposal`` None means no smoothing.

    ``granularity``: whether the mixture component is chosen once per word or once per word and dimension.
    ``scope``: whether each column of a batch has its own table, the whole batch shares one, or each position draws afresh.
    ``dropout`` has a granularity of its own and is inverted; ``variance`` is that of every component and is not scaled by it.
    """

    def __init__(
        self,
        weight: Tensor,
        proposal: Proposal | None,
        granularity: Granularity = "word",
        scope: Scope = "sequence",
        dropout: float = 0.0,
        dropout_granularity: Granularity = "element",
        variance: float = 0.0,
    ) -> None:
        check_choice("granularity", granularity, get_args(Granularity))
        check_choice("scope", scope, get_args(Scope))
        check_choice("dropout_granularity", dropout_granularity, get_args(Granularity))
        if not isinstance(dropout, SupportsFloat) or not 0 <= dropout < 1:
            raise InputError(f"dropout must be a number in [0, 1), got {dropout!r}")
        if not 0 <= variance < float("inf"):
            raise InputError(f"variance must be finite and at least 0, got {variance}")
        if weight.dim() != 2:
            raise InputError(f"weight must be [V, D], got shape {tuple(weight.shape)}")
        if proposal is not None and proposal.vocab_size != weight.shape[0]:
            raise InputError(f"weight has {weight.shape[0]} rows, proposal has {proposal.vocab_size} words; they must agree")
        self.weight = weight
        self.proposal = proposal if proposal is None else proposal.to(weight.device)
        self.granularity: Granularity = granularity
        self.scope: Scope = scope
        self.dropout = dropout
        self.dropout_granularity: Granularity = dropout_granularity
        self.variance = variance

    @property
    def smooths(self) -> bool:
        """Whether any word is ever replaced."""
        return self.proposal is not None and not self.proposal.silent

    @cached_property
    def unsmoothed(self) -> EmbeddingPosterior:
        """q with the same dropout and variance and no smoothing."""
        return EmbeddingPosterior(
            self.weight, None, self.granularity, self.scope, self.dropout, self.dropout_granularity, self.variance
        )

    def sample(
        self,
        key: DrawKey | int,
        sequence: int = 0,
        position: int = 0,
        *,
        rows: int | None = None,
        dtype: torch.dtype | None = None,
        sink: GradientSink | None = None,
    ) -> Tensor:
        """Return one draw of the whole table, [V, D], or of its first ``rows``; coordinates the scope does not use are ignored.

        Here and below ``dtype`` is that of the result (None: the weight's; gradients always have the weight's), and ``sink``
        lets several draws of one table share one gradient.
        """
        places = Places(sequence=0 if self.scope == "batch" else sequence, position=position if self.scope == "position" else 0)
        return draw_rows(self.weight, None, DrawKey.of(key), self._plan, places, rows=rows, dtype=dtype, sink=sink)

    def lookup(
        self,
        ids: Tensor,
        key: DrawKey | int,
        first_sequence: int = 0,
        *,
        dtype: torch.dtype | None = None,
        sink: GradientSink | None = None,
    ) -> Tensor:
        """Return drawn vectors [T, B, D] for ids [T, B] without building a table.

        Column b equals ``sample(key, sequence=first_sequence + b)[ids[:, b]]`` exactly (under position scope, position by
        position).
        """
        places = _places(ids, len(self.weight), self.scope, first_sequence)
        drawn = draw_rows(self.weight, ids.reshape(-1), DrawKey.of(key), self._plan, places, dtype=dtype, sink=sink)
        return drawn.view(*ids.shape, self.weight.shape[1])

    def replaced(self, ids: Tensor, key: DrawKey | int, first_sequence: int = 0) -> Tensor:
        """Return where ``lookup`` with the same arguments replaced the word (the coin fell), a bool tensor [T, B]."""
        if self.granularity != "word":
            raise InputError("replaced() needs granularity 'word': element-wise smoothing replaces no whole word")
        places = _places(ids, len(self.weight), self.scope, first_sequence)
        return replaced_words(ids.reshape(-1), DrawKey.of(key), self._plan, places).view(ids.shape)

    def lookup_replaced(
        self,
        ids: Tensor,
        key: DrawKey | int,
        scope: Scope = "sequence",
        first_sequence: int = 0,
        *,
        dtype: torch.dtype | None = None,
        sink: GradientSink | None = None,
    ) -> Tensor:
        """Return, for ids [T, B], the vectors [T, B, D] of other words drawn from the proposal, each shared as ``scope`` says.

        Dropout and variance are those of the batch's table (``sample(key)`` of batch scope) at the rows ``ids``.
        """
        self._check_replaces("lookup_replaced")
        places = _places(ids, len(self.weight), scope, first_sequence)
        flat, key = ids.reshape(-1), DrawKey.of(key)
        drawn = draw_rows(self.weight, flat, key, self._plan, places, replaces_all=True, dtype=dtype, sink=sink)
        return drawn.view(*ids.shape, self.weight.shape[1])

    def score_replaced(
        self,
        hidden: Tensor,
        ids: Tensor,
        key: DrawKey | int,
        wanted: Tensor,
        scope: Scope = "sequence",
        first_sequence: int = 0,
        *,
        sink: GradientSink | None = None,
    ) -> Tensor:
        """Return the products [T, B] of ``hidden`` [T, B, D] with ``lookup_replaced`` of ids [T, B], 0 where not ``wanted``."""
        self._check_replaces("score_replaced")
        places = _places(ids, len(self.weight), scope, first_sequence)
        flat = (hidden.flatten(0, 1), self.weight, ids.reshape(-1), DrawKey.of(key), self._plan, places, wanted.reshape(-1))
        return score_others(*flat, sink=sink).view(ids.shape)

    def mode(self) -> Tensor:
        """Return the table itself."""
        return self.weight

    def mean(self) -> Tensor:
        """Return ``(1 - g_i) e_i + g_i m`` with ``m = sum_v T_v e_v`` (eq. 4)."""
        if self.proposal is None or self.proposal.silent:
            return self.weight
        rate = self.proposal.rate.to(self.weight.dtype)[:, None]
        return (1 - rate) * self.weight + rate * self._centre(self.proposal)

    def lookup_mean(self, ids: Tensor) -> Tensor:
        """Return ``mean()[ids]``, to the bit, without building the mean."""
        vectors = F.embedding(ids, self.weight)
        if self.proposal is None or self.proposal.silent:
            return vectors
        rate = self.proposal.rate.to(self.weight.dtype)[ids][..., None]
        return (1 - rate) * vectors + rate * self._centre(self.proposal)

    def score_mean(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the products of ``hidden`` [..., D] with every row of ``mean()``, and ``bias`` added.

        For few vectors the mean is not built: it would take longer than all the rest.
        """
        few = hidden.numel() < hidden.shape[-1] ** 2
        if self.proposal is None or self.proposal.silent or not few:
            return F.linear(hidden, self.mean(), bias)
        scores = F.linear(hidden, self.weight)
        of_centre = F.linear(hidden, self._centre(self.proposal)[None])
        scores = torch.lerp(scores, of_centre.expand_as(scores), self.proposal.rate.to(scores.dtype).expand_as(scores))
        return scores if bias is None else scores + bias.to(scores.dtype)

    def _centre(self, proposal: Proposal) -> Tensor:
        return proposal.probs.to(self.weight.dtype) @ self.weight

    def kl_weights(self, form: KLForm = "exact") -> Tensor:
        """Return c_v [V]: ``exact`` (eq. 6), ``printed`` (eq. 7, the sign mended) or ``plain`` (all ones)."""
        return kl_weights(self.proposal, self.weight.shape[0], form).to(self.weight)

    def kl(self, form: KLForm = "exact") -> Tensor:
        """Return ``0.5 * sum_v c_v |e_v|^2`` (eq. 5), before lambda; in single precision at least."""
        # The sum over a table of 20,000 words passes 65,504, the largest number of float16.
        wide = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        weights = kl_weights(self.proposal, self.weight.shape[0], form).to(wide)
        return 0.5 * (weights * wide.square().sum(1)).sum()

    @cached_property
    def _plan(self) -> DrawPlan:
        return DrawPlan.of(
            self.proposal,
            by_element=self.granularity == "element",
            dropout=self.dropout,
            dropout_by_element=self.dropout_granularity == "element",
            variance=self.variance,
        )

    def _check_replaces(self, name: str) -> None:
        if not self.smooths:
            raise InputError(f"{name} needs a proposal with a rate above 0")


def _places(ids: Tensor, words: int, scope: Scope, first_sequence: int) -> Places:
    """Keep the coordinates that the scope uses; the others are 0."""
    if ids.dim() != 2:
        raise InputError(f"ids must be [T, B], got shape {tuple(ids.shape)}")
    check_ids("ids", ids, words)
    if scope == "batch":
        return Places()
    return Places(max(1, ids.shape[1]), first_sequence, by_sequence=True, by_position=scope == "position")
