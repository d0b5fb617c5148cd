"""A stream read once by the recurrent layers; losses and temperatures then need the output layer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from varsmooth.draws import DrawKey, Site, row_words
from varsmooth.errors import InputError
from varsmooth.evaluate import newton, output
from varsmooth.evaluate.calibration import Judged, judge_each
from varsmooth.evaluate.columns import Columns, Step
from varsmooth.evaluate.perplexity import COLDEST, Scales, perplexity_of
from varsmooth.evaluate.precision import full_precision
from varsmooth.evaluate.side_by_side import SideBySide
from varsmooth.model import RecurrentLanguageModel, Tables
from varsmooth.posterior import Predict

HIDDEN_BYTES = {"cpu": 1 << 30, "cuda": 1 << 33}
"""Hidden states kept, at most (on a GPU also a quarter of what is free); a stream with more is read for every question."""
GATE_BYTES = 1 << 27
"""Gates of one window, at most."""
LONG = 1 << 14
"""Tokens of which a part tells well enough where to begin."""
HiddenByPair: TypeAlias = dict[tuple[str, bool], Tensor | None]
"""By stream and whether the input table is the mode."""


@dataclass(frozen=True)
class Evaluation:
    """What a prediction rule makes of a stream."""

    nll: float
    """mean negative log-likelihood per token, in nats"""
    tokens: int
    predict: str
    temperature: float = 1.0
    samples: int | None = None
    average: str | None = None
    scales: Scales | None = None
    """instead of a temperature"""

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.nll)


@dataclass(frozen=True, eq=False)
class Reading:
    """What a network, with the weights it has now, makes of a stream."""

    network: RecurrentLanguageModel
    columns: Columns
    tables: Tables
    predict: str
    window: int
    hidden: Tensor | None
    """[steps, B, D]; None where it is too large to keep"""
    source: object = None
    """what a GPU may still be writing ``hidden`` with, so that it is not taken away meanwhile"""

    def evaluate(self, temperature: float = 1.0) -> Evaluation:
        """Return the mean loss at a temperature."""
        nll = float(self.token_nll(temperature).sum(dtype=torch.float64)) / self.columns.tokens
        return Evaluation(nll, self.columns.tokens, self.predict, temperature)

    def token_nll(self, temperature: float = 1.0) -> Tensor:
        """Return the loss of every token [tokens], on the network's device."""
        return self._figures(partial(output.target_nll, temperature=temperature))

    def judged(self, temperature: float = 1.0) -> Judged:
        """Return the loss of every token, and how sure and how right the prediction was."""
        return self.judged_at((temperature,))[0]

    def judged_at(self, temperatures: Sequence[float]) -> list[Judged]:
        """Return the same at several temperatures, from logits that are computed once."""
        return [Judged(*parts) for parts in self._figures(partial(judge_each, temperatures=temperatures))]

    def judged_and_scaled(self, temperatures: Sequence[float], scales: Scales) -> tuple[list[Judged], Evaluation]:
        """Return the same and what ``scaled`` returns, from logits that are computed once."""
        bias = self.network.bias.float()

        def all_of(logits: Tensor, targets: Tensor) -> Tensor:
            judged = judge_each(logits, targets, temperatures).flatten(0, 1)
            return torch.cat([judged, output.scaled_nll(logits, targets, bias, scales)[None]])

        *parts, losses = self._figures(all_of)
        of_each = len(Judged._fields)
        each = [Judged(*parts[start : start + of_each]) for start in range(0, len(parts), of_each)]
        return each, self._mean_with(scales, losses)

    def targets(self) -> Tensor:
        """Return the tokens [tokens] in the order of the stream."""
        return self.columns.in_order(self.columns.targets)

    def best_temperature(self, tolerance: float = 1e-3) -> float:
        """Return the temperature with the lowest perplexity."""
        return max(COLDEST, 1 / self._best(Scales(1.0, 1.0), newton.together, tolerance).context)

    def best_scales(self, start: float = 1.0, tolerance: float = 1e-3) -> Scales:
        """Return the scales of context and bias with the lowest perplexity, looked for from ``start`` for both."""
        # Where the context tells no word from another, its scale would follow nothing but rounding.
        rule = newton.apart if self._tells_words_apart() else newton.bias_alone
        found = self._best(Scales(start, start), rule, tolerance)
        return Scales(*(min(max(scale, -1 / COLDEST), 1 / COLDEST) for scale in found))

    def scaled(self, scales: Scales) -> Evaluation:
        """Return the mean loss with scales."""
        return self._mean_with(scales, self._figures(partial(output.scaled_nll, bias=self.network.bias.float(), scales=scales)))

    def _mean_with(self, scales: Scales, losses: Tensor) -> Evaluation:
        nll = float(losses.sum(dtype=torch.float64)) / self.columns.tokens
        return Evaluation(nll, self.columns.tokens, self.predict, scales=scales)

    def _best(self, start: Scales, rule: newton.Rule, tolerance: float) -> Scales:
        """Return the scales with the lowest loss; from those of a part of a long stream it is not far."""
        if (part := self._thinned()) is not None:
            start = part._best(start, rule, tolerance)
        bias = self.network.bias.float()

        def terms_at(scales: Scales) -> newton.Derivatives:
            terms = self._figures(partial(output.scale_terms, bias=bias, scales=scales))
            return newton.Derivatives(*terms.sum(-1, dtype=torch.float64).tolist())

        return newton.minimum(terms_at, start, rule, tolerance)

    def _thinned(self) -> Reading | None:
        """Return the reading of one token in eight; None where the stream is short, in several columns, or not kept.

        Of each eight a random one: in lines of equal length every eighth may be the first, about which a model knows the least.
        """
        if self.hidden is None or self.columns.shape[1] > 1 or self.columns.tokens < LONG:
            return None
        eighths = torch.arange(self.columns.tokens // 8)
        tokens = 8 * eighths + row_words(DrawKey(0, site=Site.PART_OF_STREAM), eighths)[0] % 8
        tokens = tokens.to(self.hidden.device)
        hidden, inputs, targets = (each[tokens] for each in (self.hidden, self.columns.inputs, self.columns.targets))
        return replace(self, hidden=hidden, columns=replace(self.columns, tokens=len(targets), inputs=inputs, targets=targets))

    @torch.inference_mode()
    def _tells_words_apart(self) -> bool:
        table = self.tables.output[: self.network.bias.numel()]
        with full_precision(table.device):
            return any(output.tells_words_apart(hidden, table) for hidden, _ in self._hidden_parts())

    @torch.inference_mode()
    def _figures(self, of_logits: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return ``of_logits`` of every token, [..., tokens]."""
        bias = self.network.bias
        with full_precision(bias.device):
            found = [
                of_logits(*chunk)
                for hidden, targets in self._hidden_parts()
                for chunk in output.logit_chunks(hidden, targets, self.tables.output, bias)
            ]
        figures = found[0] if len(found) == 1 else torch.cat(found, dim=-1)
        return self.columns.in_order(figures.view(*figures.shape[:-1], *self.columns.shape))

    def _hidden_parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield hidden states [rows, D] and their targets [rows]: all at once, or window by window."""
        targets = self.columns.targets
        if self.hidden is not None:
            yield self.hidden.flatten(0, 1), targets.flatten()
            return
        windows = _hidden_windows(self.network, self.columns, self.tables.input, self.window)
        for hidden, some_targets in zip(windows, torch.split(targets, self.window), strict=True):
            yield hidden.flatten(0, 1), some_targets.flatten()


@torch.inference_mode()
def read(network: RecurrentLanguageModel, columns: Columns, tables: Tables, predict: str, window: int) -> Reading:
    """Run the recurrent layers over a stream, once."""
    window = bounded_window(network, columns.shape[1], window)
    with full_precision(network.bias.device):
        return Reading(network, columns, tables, predict, window, _hidden(network, columns, tables.input, window))


@torch.inference_mode()
def read_together(
    network: RecurrentLanguageModel,
    streams: Mapping[str, Tensor],
    eos_id: int,
    predicts: Sequence[Predict],
    *,
    window: int,
    side_by_side: bool | None = None,
) -> dict[tuple[str, Predict], Reading]:
    """Read every stream by every prediction, the state carried from its beginning to its end.

    Predictions with one input table share a reading. A GPU takes as long for a step of one column as for a step of several, so
    there all of them are read ``side_by_side``.
    """
    device = network.bias.device
    columns = {name: Columns.cut(ids, eos_id, 1, 0, device) for name, ids in streams.items()}
    with full_precision(device):
        tables = {predict: network.tables(predict) for predict in predicts}
        # The two means differ in the output table alone.
        inputs = {predict == "mode": tables[predict].input for predict in predicts}
        if side_by_side is None:
            longest = max(each.tokens for each in columns.values())
            side_by_side = device.type == "cuda" and _fits(network, longest, len(columns) * len(inputs))
        window = bounded_window(network, len(columns) * len(inputs) if side_by_side else 1, window)
        hidden, source = (_hidden_side_by_side if side_by_side else _hidden_one_by_one)(network, columns, inputs, window)
    return {
        (name, predict): Reading(network, each, tables[predict], predict, window, hidden[name, predict == "mode"], source)
        for name, each in columns.items()
        for predict in predicts
    }


def bounded_window(network: RecurrentLanguageModel, batch: int, window: int) -> int:
    """Return ``window``, or less where its gates would take too much memory."""
    if window < 1:
        raise InputError(f"window must be at least 1, got {window}")
    return max(1, min(window, GATE_BYTES // (16 * batch * network.stack.width)))


def recurrent_step(network: RecurrentLanguageModel, input_table: Tensor) -> Step:
    """Return the step from inputs [T, B] to hidden states [T, B, D]."""
    return lambda inputs, state, _: network.stack(F.embedding(inputs, input_table), state, None)


def _fits(network: RecurrentLanguageModel, steps: int, batch: int) -> bool:
    device = network.bias.device
    room = HIDDEN_BYTES.get(device.type, HIDDEN_BYTES["cpu"])
    if device.type == "cuda":
        room = min(room, torch.cuda.mem_get_info(device)[0] // 4)
    return steps * batch * network.stack.width * network.bias.element_size() <= room


def _hidden(network: RecurrentLanguageModel, columns: Columns, input_table: Tensor, window: int) -> Tensor | None:
    """Return the hidden states [steps, B, D], or None where they are too many to keep."""
    steps, batch = columns.shape
    if not _fits(network, steps, batch):
        return None
    return _joined(_hidden_windows(network, columns, input_table, window), steps)


def _hidden_windows(network: RecurrentLanguageModel, columns: Columns, input_table: Tensor, window: int) -> Iterator[Tensor]:
    return columns.read(recurrent_step(network, input_table), network.initial_state(columns.shape[1]), window)


def _hidden_one_by_one(
    network: RecurrentLanguageModel, columns: Mapping[str, Columns], input_tables: Mapping[bool, Tensor], window: int
) -> tuple[HiddenByPair, None]:
    """Return the hidden states [steps, 1, D] of every stream by every input table, None where they are too many to keep."""
    pairs = [(name, rule) for name in columns for rule in input_tables]
    return {(name, rule): _hidden(network, columns[name], input_tables[rule], window) for name, rule in pairs}, None


def _hidden_side_by_side(
    network: RecurrentLanguageModel, columns: Mapping[str, Columns], input_tables: Mapping[bool, Tensor], window: int
) -> tuple[HiddenByPair, SideBySide | None]:
    """Return the hidden states [steps, 1, D] of every stream by every input table, from one pass over the longest."""
    inputs = pad_sequence([each.inputs[:, 0] for each in columns.values()])
    tables = list(input_tables.values())
    captured = SideBySide(network, inputs, tables, window) if inputs.is_cuda else None
    if captured is not None:
        joined = captured.read()
    else:
        joined = _joined(_windows_side_by_side(network, inputs, tables, window), len(inputs))
    pairs = [(name, rule) for rule in input_tables for name in columns]
    hidden = torch.split(joined, 1, dim=1)
    return {pair: part[: columns[pair[0]].tokens] for pair, part in zip(pairs, hidden, strict=True)}, captured


def _windows_side_by_side(
    network: RecurrentLanguageModel, inputs: Tensor, tables: Sequence[Tensor], window: int
) -> Iterator[Tensor]:
    state = network.initial_state(inputs.shape[1] * len(tables))
    for some in torch.split(inputs, window):
        hidden, state = network.stack(torch.cat([F.embedding(some, table) for table in tables], dim=1), state, None)
        yield hidden


def _joined(windows: Iterator[Tensor], steps: int) -> Tensor:
    """Return windows [T, B, D] as one tensor [steps, B, D], never holding more than one of them twice."""
    window = next(windows)
    if len(window) == steps:
        return window
    joined = window.new_empty(steps, *window.shape[1:])
    end = len(window)
    joined[:end] = window
    for window in windows:
        joined[end : end + len(window)] = window
        end += len(window)
    return joined
