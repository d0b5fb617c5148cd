"""What stands in for the forward of an embedding and of a head: the same call, with a drawn or a mean table.

The weight is read at each call and never replaced, so the parameters, the tie and the state dict stay what they are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varsmooth.draws import Site
from varsmooth.dropin.clock import Clock, Window, outside_compile
from varsmooth.errors import InputError
from varsmooth.ops.backend import gpu_autocast_dtype, kernels_for
from varsmooth.posterior import EmbeddingPosterior, Granularity, OutputRule, Scope
from varsmooth.proposal import Proposal


@dataclass(frozen=True)
class Settings:
    """How tables are drawn; the names are those of ``EmbeddingPosterior`` and ``output_loss``."""

    granularity: Granularity
    output: OutputRule
    scope: Scope
    dropout: float
    dropout_granularity: Granularity
    variance: float
    batch_first: bool


@dataclass(eq=False)
class Table:
    """The posterior of a module's weight, made anew where the weight is another tensor or has moved."""

    module: nn.Embedding | nn.Linear
    name: str
    proposal: Proposal | None
    scope: Scope
    settings: Settings
    special: Tensor | None = field(default=None, repr=False)
    """a bool for each row: words that keep their own vector as targets too"""
    _posterior: EmbeddingPosterior | None = field(default=None, repr=False)
    _made_for: tuple[torch.device, torch.dtype, torch.Size] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made anew: its weight may be one that torch does not copy, such as a step's in functional_call."""
        return {**vars(self), "_posterior": None, "_made_for": None}

    @property
    def posterior(self) -> EmbeddingPosterior:
        weight, how = self.module.weight, self.settings
        found = (weight.device, weight.dtype, weight.shape)
        if self._posterior is None or self._posterior.weight is not weight or self._made_for != found:
            if self.proposal is not None:
                if self.proposal.vocab_size != len(weight):
                    raise InputError(
                        f"{self.name!r} had {self.proposal.vocab_size} rows when it was smoothed and has {len(weight)} now; "
                        "call remove() on the handle and smooth the model again"
                    )
                self.proposal = self.proposal.to(weight.device)
                self.special = None if self.special is None else self.special.to(weight.device)
            self._made_for = found
            self._posterior = EmbeddingPosterior(
                weight, self.proposal, how.granularity, self.scope, how.dropout, how.dropout_granularity, how.variance
            )
        return self._posterior


@dataclass(eq=False)
class Smoothed:
    """A module whose forward is ours until ``restore``."""

    module: nn.Embedding | nn.Linear
    table: Table
    clock: Clock
    mean: bool
    """whether prediction uses the mean, else the table itself"""

    def install(self) -> None:
        # A bound method, as copying the model then copies what it is bound to.
        vars(self.module)["forward"] = self.forward

    def restore(self) -> None:
        vars(self.module).pop("forward", None)

    @outside_compile
    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        self.check_tie()
        if not self.module.training and not (self.mean and self.table.posterior.smooths):
            return type(self.module).forward(self.module, *given, **named)  # type: ignore[arg-type]
        if len(given) + len(named) != 1:
            raise InputError(
                f"{self.table.name!r} was called with {len(given) + len(named)} arguments; a smoothed layer takes what it "
                "reads and nothing else: leave this one out of the smoothing"
            )
        (input,) = (*given, *named.values())
        if self.module.training:
            self.clock.never_drawn.discard(self.table.name)
            return self.drawn(input)
        return self.predicted(input)

    def check_tie(self) -> None:
        """Refuse a layer that shared the table when it was smoothed, and no longer does."""
        if self.module is not self.table.module and self.module.weight is not self.table.module.weight:
            raise InputError(
                f"a layer that shared the table of {self.table.name!r} when that was smoothed has one of its own now "
                "(load_state_dict with assign=True unties tables); tie them again, or remove() the handle and smooth again"
            )

    def drawn(self, given: Tensor) -> Tensor:
        raise NotImplementedError

    def predicted(self, given: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(eq=False)
class SmoothedEmbedding(Smoothed):
    module: nn.Embedding

    def drawn(self, given: Tensor) -> Tensor:
        posterior, how = self.table.posterior, self.table.settings
        # One column is looked up as ever, which complains of ids that the table lacks: draws do not.
        F.embedding(given, posterior.weight.detach()[:, :1])
        window, first = self.clock.columns(self._columns(given), how.scope)
        ids, key = _time_first(given, given.shape, how), window.key.at(Site.INPUT)
        if how.output == "target" and posterior.smooths:
            if window.lookups > 1:
                raise InputError("output='target' needs one look-up in a forward pass, this model makes several; use 'table'")
            window.replaced = _as_given(posterior.replaced(ids, key, first), given.shape, how)
        return self._finish(_as_given(posterior.lookup(ids, key, first), given.shape, how), given)

    def predicted(self, given: Tensor) -> Tensor:
        return self._finish(self.table.posterior.lookup_mean(given), given)

    def _columns(self, given: Tensor) -> int:
        """Return how many sequences the ids hold."""
        how = self.table.settings
        if how.scope == "batch":
            return 1
        if given.dim() < 2 or (given.dim() > 2 and not how.batch_first):
            raise InputError(
                f"the embedding was given ids of shape {tuple(given.shape)}; scope {how.scope!r} needs [batch, time], "
                "or [time, batch] with batch_first=False; scope='batch' takes any shape"
            )
        return given.shape[0 if how.batch_first else 1]

    def _finish(self, vectors: Tensor, given: Tensor) -> Tensor:
        """Do to the vectors what the module does beside the look-up: keep gradients off padding, and what a subclass adds."""
        if self.module.padding_idx is not None:
            vectors = torch.where((given == self.module.padding_idx)[..., None], vectors.detach(), vectors)
        return vectors if is_plain(self.module) else forward_on_rows(self.module, vectors)


def _time_first(found: Tensor, ids: torch.Size, how: Settings) -> Tensor:
    """Return what belongs to ids of that shape, [*ids, ...], as [T, B, ...]; a table that the batch shares is as one column."""
    rest = found.shape[len(ids) :]
    if how.scope == "batch":
        return found.reshape(ids.numel(), 1, *rest)
    return found.reshape(ids[0], ids[1:].numel(), *rest).transpose(0, 1) if how.batch_first else found


def _as_given(found: Tensor, ids: torch.Size, how: Settings) -> Tensor:
    """Return what was found for ``_time_first`` ids, [T, B, ...], as [*ids, ...]."""
    if how.batch_first and how.scope != "batch":
        found = found.transpose(0, 1).contiguous()
    return found.reshape(ids + found.shape[2:])


def is_plain(module: nn.Embedding) -> bool:
    return type(module).forward is nn.Embedding.forward


def forward_on_rows(module: nn.Embedding, vectors: Tensor) -> Tensor:
    """Run a subclass's own forward on vectors that were looked up already: as a table that is read row by row."""
    rows = vectors.flatten(0, -2)
    shadow = copy.copy(module)
    vars(shadow)["_parameters"] = {**module._parameters, "weight": rows}
    shadow.num_embeddings, shadow.padding_idx = len(rows), None
    places = torch.arange(len(rows), device=rows.device).view(vectors.shape[:-1])
    return type(module).forward(shadow, places)


@dataclass(eq=False)
class SmoothedHead(Smoothed):
    module: nn.Linear

    def drawn(self, given: Tensor) -> Tensor:
        follows_target = self.table.settings.output == "target"
        window, posterior = self.clock.current(with_labels=follows_target), self.table.posterior
        if follows_target:
            return self._target(given, window, posterior)
        return self._score(given, _sample(posterior, window))

    def predicted(self, given: Tensor) -> Tensor:
        # The mean is not kept from pass to pass: weights change behind a version counter's back (``.data``, CUDA graphs).
        return self.table.posterior.score_mean(given, self.module.bias)

    def _score(self, given: Tensor, table: Tensor) -> Tensor:
        return F.linear(given, table, self.module.bias)

    def _target(self, given: Tensor, window: Window, posterior: EmbeddingPosterior) -> Tensor:
        """Score the target by another word's vector where the input was replaced; every other logit stays."""
        drops = posterior.dropout > 0 or posterior.variance > 0
        table = _sample(posterior.unsmoothed, window) if drops else posterior.weight
        if not posterior.smooths:
            return self._score(given, table)
        labels, replaced = _labels_and_replaced(given, window)
        wanted, targets = replaced & (labels >= 0), labels.clamp(min=0)
        if self.table.special is not None:
            wanted = wanted & ~self.table.special[targets]
        scores = self._scores_of_others(posterior, given.reshape(*labels.shape, given.shape[-1]), targets, wanted, window)
        if self.module.bias is not None:
            scores = scores + self.module.bias[targets]
        logits = self._score(given.reshape(-1, given.shape[-1]), table)
        instead: Tensor = _Instead.apply(logits, scores.reshape(-1, 1), targets.reshape(-1, 1), wanted.reshape(-1, 1))  # type: ignore[no-untyped-call]
        return instead.view(*given.shape[:-1], instead.shape[-1])

    def _scores_of_others(
        self, posterior: EmbeddingPosterior, hidden: Tensor, targets: Tensor, wanted: Tensor, window: Window
    ) -> Tensor:
        how, key = self.table.settings, window.key.at(Site.OUTPUT)
        ids = targets.shape
        hidden, targets, wanted = (_time_first(part, ids, how).contiguous() for part in (hidden, targets, wanted))
        scores = posterior.score_replaced(hidden, targets, key, wanted, how.scope, window.first_sequence)
        return _as_given(scores, ids, how)


class _Instead(torch.autograd.Function):
    """Puts scores [n, 1] into logits [n, words] at ``places`` where ``wanted``, in place: copying logits takes time."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scores: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
        ctx.mark_dirty(logits)
        ctx.save_for_backward(places, wanted)
        return logits.scatter_(1, places, torch.where(wanted, scores.to(logits.dtype), logits.gather(1, places)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,), (places, wanted) = gradients, ctx.saved_tensors
        own = gradient.gather(1, places)
        return gradient.scatter(1, places, own.masked_fill(wanted, 0)), own.masked_fill(~wanted, 0), None, None


def _sample(posterior: EmbeddingPosterior, window: Window) -> Tensor:
    """Draw the table, on a GPU in what autocast will multiply in, so that nothing wider is written."""
    narrow = gpu_autocast_dtype(posterior.weight) if kernels_for(posterior.weight) else None
    return posterior.sample(window.key.at(Site.OUTPUT), dtype=narrow)


def _labels_and_replaced(given: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    labels, replaced = window.labels, window.replaced
    if labels is None:
        raise InputError(
            "output='target' needs the labels before the forward pass: call handle.labels(targets) first, with shift=True "
            "where your model shifts them, or pass labels=... to a causal model of transformers that is known to; "
            "output='table' needs none, and goes with a Trainer's label_smoothing_factor, which keeps them from the model"
        )
    if replaced is None:
        raise InputError("output='target' needs the embedding to be called before the head")
    if labels.shape != replaced.shape or labels.numel() * given.shape[-1] != given.numel():
        raise InputError(
            f"labels {tuple(labels.shape)} do not fit the ids {tuple(replaced.shape)} and the head's input "
            f"{tuple(given.shape)}; output='target' needs one label for each input word"
        )
    return labels.to(given.device), replaced
