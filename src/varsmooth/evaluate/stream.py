"""Perplexity of a stream: state carried, first token predicted from <eos>, every token once (docs/maths.md, section 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError, check_choice
from varsmooth.model import Predict, RecurrentLanguageModel, State, Tables

Average = Literal["arithmetic", "geometric"]
PredictOrSample = Predict | Literal["sample"]
LOGIT_BYTES = 1 << 27
"""Logits held at once: what bounds the memory of an evaluation, whatever the length of the stream."""


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

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll) if self.nll < 700 else math.inf


class Piece(NamedTuple):
    """The next few steps of every column: logits [T, B, words], targets [T, B], and which of them count."""

    logits: Tensor
    targets: Tensor
    counted: Tensor


Step = Callable[[Tensor, State, int], tuple[Tensor, State]]


@torch.inference_mode()
def evaluate(
    network: RecurrentLanguageModel,
    ids: Tensor,
    eos_id: int,
    *,
    predict: PredictOrSample = "mode",
    temperature: float = 1.0,
    batch: int = 1,
    window: int = 128,
    burn_in: int = 64,
    samples: int = 20,
    average: Average = "arithmetic",
    seed: int = 0,
    tables: Tables | None = None,
) -> Evaluation:
    """Return the loss of ``ids``. With ``batch`` 1 the state is carried through the whole stream; with more, the stream is cut
    into so many columns, each of which first reads the ``burn_in`` tokens before it. ``tables`` saves making them again.

    ``sample`` draws the tables ``samples`` times for every window, each draw with its own state; ``arithmetic`` averages the
    probabilities, ``geometric`` the log-likelihoods.
    """
    _check(predict, temperature, average, samples)
    if predict == "sample":
        nll = _sampled_nll(network, ids, eos_id, temperature, batch, window, burn_in, samples, average, seed)
        return Evaluation(nll / ids.numel(), ids.numel(), predict, temperature, samples, average)
    total = 0.0
    for piece in pieces(network, ids, eos_id, _fixed(network, tables or network.tables(predict)), batch, window, burn_in):
        total += float(_target_nll(piece, temperature).sum(dtype=torch.float64))
    return Evaluation(total / ids.numel(), ids.numel(), predict, temperature)


@torch.inference_mode()
def best_temperature(
    network: RecurrentLanguageModel,
    ids: Tensor,
    eos_id: int,
    *,
    predict: Predict = "mode",
    batch: int = 1,
    window: int = 128,
    burn_in: int = 64,
    tolerance: float = 1e-3,
) -> float:
    """Return the temperature with the lowest perplexity on ``ids``.

    The loss is convex in beta = 1 / temperature, so Newton's method finds its minimum in a few passes over the stream.
    """
    beta, tables = 1.0, network.tables(predict)
    for _ in range(12):
        slope = curvature = 0.0
        for piece in pieces(network, ids, eos_id, _fixed(network, tables), batch, window, burn_in):
            logits = piece.logits.float()
            probs = (beta * logits).softmax(-1)
            mean = (probs * logits).sum(-1)
            own = logits.gather(-1, piece.targets[..., None]).squeeze(-1)
            variance = (probs * (logits - mean[..., None]).square()).sum(-1)
            slope += float(((mean - own) * piece.counted).sum(dtype=torch.float64))
            curvature += float((variance * piece.counted).sum(dtype=torch.float64))
        # A model that is sure of everything has no curvature left; it gets a long step in the right direction.
        newton = beta - slope / max(curvature, 1e-30)
        last, beta = beta, min(max(newton, beta / 2), beta * 2)
        if abs(beta - last) < tolerance * beta:
            break
    return 1 / beta


def pieces(
    network: RecurrentLanguageModel, ids: Tensor, eos_id: int, step: Step, batch: int, window: int, burn_in: int
) -> Iterator[Piece]:
    """Yield the logits of the whole stream, a few steps of all columns at a time."""
    device = network.bias.device
    tokens = ids.numel()
    if tokens == 0:
        raise InputError("there is no token to evaluate")
    batch = min(batch, tokens)
    column = -(-tokens // batch)
    batch = -(-tokens // column)
    window = max(1, min(window, LOGIT_BYTES // (4 * batch * network.words)))
    starts = torch.arange(batch, device=device) * column
    stream = torch.cat([torch.tensor([eos_id], device=device), ids.to(device).long()])
    state = _warm_state(network, stream, step, starts, min(burn_in, column), window)
    for index, start in enumerate(range(0, column, window)):
        length = min(window, column - start)
        places = starts[None, :] + start + torch.arange(length, device=device)[:, None]
        counted = places < tokens
        places = places.clamp(max=tokens - 1)
        logits, state = step(stream[places], state, index + 1)
        yield Piece(logits, stream[places + 1], counted)


def _warm_state(
    network: RecurrentLanguageModel, stream: Tensor, step: Step, starts: Tensor, burn_in: int, window: int
) -> State:
    """Return the state before each column's first token: zero for the first, that after ``burn_in`` tokens for the others."""
    state = network.initial_state(starts.numel())
    if burn_in == 0 or starts.numel() == 1:
        return state
    places = starts[None, :] + torch.arange(-burn_in, 0, device=starts.device)[:, None]
    for start in range(0, burn_in, window):
        _, state = step(stream[places[start : start + window].clamp(min=0)], state, 0)
    first = torch.arange(starts.numel(), device=starts.device) == 0
    return tuple(part.masked_fill(first[None, :, None], 0) for part in state)


def _fixed(network: RecurrentLanguageModel, tables: Tables) -> Step:
    return lambda inputs, state, _: network.logits(inputs, state, tables)


def _target_nll(piece: Piece, temperature: float) -> Tensor:
    """Return the loss of each target, 0 where it does not count."""
    logits = piece.logits.float() / temperature
    own = logits.gather(-1, piece.targets[..., None]).squeeze(-1)
    return (logits.logsumexp(-1) - own) * piece.counted


def _sampled_nll(
    network: RecurrentLanguageModel,
    ids: Tensor,
    eos_id: int,
    temperature: float,
    batch: int,
    window: int,
    burn_in: int,
    samples: int,
    average: Average,
    seed: int,
) -> float:
    """Run every draw through the stream side by side, so that only one window of each is held."""

    def drawn(sample: int) -> Step:
        return lambda inputs, state, index: network.sampled_logits(inputs, state, DrawKey(seed, index * samples + sample))

    streams = [pieces(network, ids, eos_id, drawn(sample), batch, window, burn_in) for sample in range(samples)]
    total = 0.0
    for drawn_pieces in zip(*streams, strict=True):
        nlls = torch.stack([_target_nll(piece, temperature) for piece in drawn_pieces])
        combined = nlls.mean(0) if average == "geometric" else math.log(samples) - (-nlls).logsumexp(0)
        total += float((combined * drawn_pieces[0].counted).sum(dtype=torch.float64))
    return total


def _check(predict: str, temperature: float, average: str, samples: int) -> None:
    check_choice("predict", predict, (*get_args(Predict), "sample"))
    check_choice("average", average, get_args(Average))
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be positive and finite, got {temperature}")
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}")
