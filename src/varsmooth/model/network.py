"""The language model: two embedding tables, drawn from their posterior, around a recurrent stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varsmooth.draws import DrawKey, Site
from varsmooth.errors import InputError, check_choice
from varsmooth.model.activations import dropped
from varsmooth.model.recurrent import RecurrentStack
from varsmooth.model.recurrent_run import State
from varsmooth.ops.backend import Branch, gpu_autocast_dtype
from varsmooth.ops.draw_matrices import Dropout
from varsmooth.ops.draw_rows import GradientSink
from varsmooth.ops.noise import noise, noise_inputs
from varsmooth.posterior import (
    EmbeddingPosterior,
    Granularity,
    KLForm,
    OutputLoss,
    OutputRule,
    Predict,
    Scope,
    kl_weights,
    output_loss,
)
from varsmooth.proposal import Proposal

DropoutKind = Literal["table", "activation"]
Method = Literal["none", "noising", "variational"]


@dataclass(frozen=True)
class Smoothing:
    """How the tables are drawn while training; see docs/maths.md, sections 2 to 4."""

    method: Method = "none"
    proposal: Proposal | None = None
    granularity: Granularity = "word"
    scope: Scope = "sequence"
    output: OutputRule = "none"
    shared_draw: bool = False
    variance: float = 0.0
    kl: KLForm = "exact"
    dropout: float = 0.0
    dropout_granularity: Granularity = "element"
    dropout_kind: DropoutKind = "table"

    def __post_init__(self) -> None:
        check_choice("dropout_kind", self.dropout_kind, get_args(DropoutKind))
        if self.method != "none" and self.proposal is None:
            raise InputError(f"method {self.method!r} needs a proposal")
        if self.shared_draw and not (self.output == "table" and self.scope == "batch"):
            raise InputError("a shared draw needs output 'table' and scope 'batch'")
        if self.output == "target" and self.granularity != "word":
            raise InputError("output 'target' needs granularity 'word': element-wise smoothing replaces no whole word")

    @property
    def drawn(self) -> Proposal | None:
        """The proposal that tables are drawn with: none unless the method is variational."""
        return self.proposal if self.method == "variational" else None

    @property
    def drawn_on_output(self) -> Proposal | None:
        """The same for the output table."""
        return self.drawn if self.output != "none" else None

    @property
    def table_dropout(self) -> float:
        return self.dropout if self.dropout_kind == "table" else 0.0

    @cached_property
    def activation_dropout(self) -> Dropout | None:
        return Dropout(self.dropout) if self.dropout_kind == "activation" and self.dropout else None


class Tables(NamedTuple):
    """An input and an output table [rows, D], fixed for a prediction."""

    input: Tensor
    output: Tensor


class RecurrentLanguageModel(nn.Module):
    """Predicts the next of ``words`` words; tables may have ``extra_rows`` (a blank) that are inputs and never targets."""

    def __init__(self, words: int, stack: RecurrentStack, *, tied: bool, smoothing: Smoothing, extra_rows: int = 0) -> None:
        super().__init__()
        if smoothing.shared_draw and not tied:
            raise InputError("a shared draw needs tied tables")
        self.words = words
        self.stack = stack
        self.smoothing = smoothing
        self.input_table = nn.Parameter(torch.empty(words + extra_rows, stack.width))
        self.own_output_table = None if tied else nn.Parameter(torch.empty(words + extra_rows, stack.width))
        self.bias = nn.Parameter(torch.empty(words))
        self._posteriors: tuple[EmbeddingPosterior, EmbeddingPosterior] | None = None
        self._kl_weights: tuple[Tensor | None, Tensor | None] | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every parameter anew, on the CPU, so that every device starts alike."""
        bound = self.stack.width**-0.5
        for table in [self.input_table] if self.own_output_table is None else [self.input_table, self.own_output_table]:
            table.copy_(torch.empty(table.shape).uniform_(-bound, bound, generator=generator))
        self.bias.zero_()
        self.stack.reset_parameters(generator)

    @property
    def output_table(self) -> Tensor:
        return self.input_table if self.own_output_table is None else self.own_output_table

    @property
    def posteriors(self) -> tuple[EmbeddingPosterior, EmbeddingPosterior]:
        """q of the input table and q of the output table, as they are drawn in training."""
        tables = self.input_table, self.output_table
        if self._posteriors is None or any(q.weight is not each for q, each in zip(self._posteriors, tables, strict=True)):
            how = self.smoothing
            self._posteriors = (
                self._posterior(self.input_table, how.drawn, how.scope, how.table_dropout),
                self._posterior(self.output_table, how.drawn_on_output, "batch", how.table_dropout),
            )
        return self._posteriors

    def initial_state(self, batch: int) -> State:
        return self.stack.initial_state(batch, self.bias.device, self.bias.dtype)

    def loss(
        self, inputs: Tensor, targets: Tensor, state: State, key: DrawKey, first_sequence: int = 0
    ) -> tuple[OutputLoss, State]:
        """Return the training loss of a window [T, B] under one draw of everything, and the state after it."""
        smoothing = self.smoothing
        if smoothing.method == "noising" and smoothing.proposal is not None:
            inputs, targets = noise(inputs, targets, smoothing.proposal, key.at(Site.NOISING), first_sequence)
        q_input, q_output = self.posteriors
        input_key = key.at(Site.INPUT)
        # One gradient for the tied table, which is drawn up to three times.
        sink = GradientSink.of(self.input_table)
        # The output table depends on the weights alone, so it can be drawn while the stack, which leaves room, runs.
        branch = Branch(self.input_table)
        own_sink = sink if self.own_output_table is None else GradientSink.of(self.own_output_table)
        vectors = q_input.lookup(inputs, input_key, first_sequence, dtype=gpu_autocast_dtype(self.input_table), sink=sink)
        activation = smoothing.activation_dropout
        if activation is not None:
            vectors = dropped(vectors, activation, key.at(Site.INPUT_ACTIVATION), first_sequence)
        hidden, state = self.stack(vectors, state, key.at(Site.RECURRENT), first_sequence)
        if activation is not None:
            hidden = dropped(hidden, activation, key.at(Site.OUTPUT_ACTIVATION), first_sequence)
        replaced = q_input.replaced(inputs, input_key, first_sequence) if smoothing.output == "target" else None
        loss = output_loss(
            hidden,
            targets,
            q_output,
            self.bias,
            input_key if smoothing.shared_draw else key.at(Site.OUTPUT),
            rule=smoothing.output,
            replaced=replaced,
            scope=smoothing.scope,
            first_sequence=first_sequence,
            words=self.words,
            sink=own_sink,
            branch=branch,
        )
        return loss, state

    def row_weights(self) -> list[Tensor | None]:
        """Return for each of ``parameters()`` the weights of rows in the penalty (eqs. 5 and 10), None where all count as 1.

        The penalty, before lambda, is half the squared norm of all parameters; a tied table counts once.
        """
        of_tables = dict(zip((self.input_table, self.own_output_table), self._table_weights, strict=True))
        return [of_tables.get(parameter) for parameter in self.parameters()]

    def tables(self, predict: Predict) -> Tables:
        """Return the tables that predict: the mode, the mean of each table that was drawn, or the mean of the input's alone."""
        check_choice("predict", predict, get_args(Predict))
        if predict == "mode":
            return Tables(self.input_table, self.output_table)
        smoothing = self.smoothing
        return Tables(
            EmbeddingPosterior(self.input_table, smoothing.proposal).mean(),
            EmbeddingPosterior(self.output_table, smoothing.drawn_on_output if predict == "mean" else None).mean(),
        )

    def logits(self, inputs: Tensor, state: State, tables: Tables) -> tuple[Tensor, State]:
        """Return logits [T, B, words] and the state after inputs [T, B], with fixed tables and no noise anywhere."""
        hidden, state = self.stack(F.embedding(inputs, tables.input), state, None)
        return F.linear(hidden, tables.output[: self.words], self.bias), state

    def sampled_logits(self, inputs: Tensor, state: State, key: DrawKey) -> tuple[Tensor, State]:
        """As ``logits``, with tables drawn anew, no dropout; ``target`` becomes ``table``, as labels must not be looked at."""
        smoothing = self.smoothing
        if smoothing.method == "noising" and smoothing.proposal is not None:
            return self.logits(noise_inputs(inputs, smoothing.proposal, key.at(Site.NOISING)), state, self.tables("mode"))
        input_key = key.at(Site.INPUT)
        q_input = self._posterior(self.input_table, smoothing.drawn, smoothing.scope, dropout=0.0)
        q_output = self._posterior(self.output_table, smoothing.drawn_on_output, "batch", dropout=0.0)
        hidden, state = self.stack(q_input.lookup(inputs, input_key), state, None)
        table = q_output.sample(input_key if smoothing.shared_draw else key.at(Site.OUTPUT))
        return F.linear(hidden, table[: self.words], self.bias), state

    def _posterior(self, table: Tensor, proposal: Proposal | None, scope: Scope, dropout: float) -> EmbeddingPosterior:
        smoothing = self.smoothing
        return EmbeddingPosterior(
            table, proposal, smoothing.granularity, scope, dropout, smoothing.dropout_granularity, smoothing.variance
        )

    @property
    def _table_weights(self) -> tuple[Tensor | None, Tensor | None]:
        """c_v of the input table's rows and of those of an output table of its own; None for all ones."""
        if self._kl_weights is None:
            self._kl_weights = self._weights(self.smoothing.drawn), self._weights(self.smoothing.drawn_on_output)
        return self._kl_weights

    def _weights(self, proposal: Proposal | None) -> Tensor | None:
        if proposal is None or proposal.silent or self.smoothing.kl == "plain":
            return None
        return kl_weights(proposal, len(self.input_table), self.smoothing.kl).to(self.input_table)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Moving the module moves the tables, so the proposal goes with them and what rests on them is made anew."""
        moved = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.smoothing.proposal is not None:
            self.smoothing = replace(self.smoothing, proposal=self.smoothing.proposal.to(self.bias.device))
        self._posteriors = self._kl_weights = None
        return moved
