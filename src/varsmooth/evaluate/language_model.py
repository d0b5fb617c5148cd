"""A trained language model for use: perplexity, scores and text, in a few lines of Python."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from varsmooth.config import Config
from varsmooth.draws import DrawKey, Site, row_words
from varsmooth.errors import InputError
from varsmooth.evaluate.columns import Columns
from varsmooth.evaluate.output import scaled_logits
from varsmooth.evaluate.perplexity import Scales, check_scales, check_temperature, perplexity_of
from varsmooth.evaluate.reading import Evaluation, Reading, read_together
from varsmooth.evaluate.sampling import Average, columns_for, sampled
from varsmooth.evaluate.stream import PredictOrSample, best_temperature, evaluate
from varsmooth.model import RecurrentLanguageModel
from varsmooth.posterior import Predict
from varsmooth.text.vocab import UNK, Vocab
from varsmooth.train.folder import RunFolder
from varsmooth.train.model_file import load_network


@dataclass(frozen=True)
class LineScore:
    """What a model makes of one line, its end included; ``log_probability`` in nats."""

    log_probability: float
    tokens: int
    unknown: int

    @property
    def perplexity(self) -> float:
        return perplexity_of(-self.log_probability / self.tokens)


class LanguageModel:
    """A network with its vocabulary. ``predict`` is how it predicts unless told otherwise."""

    def __init__(self, network: RecurrentLanguageModel, vocab: Vocab, config: Config) -> None:
        self.network = network.eval()
        self.vocab = vocab
        self.config = config
        self.predict: Predict = config.smoothing.predict

    @classmethod
    def load(cls, run: Path | str, device: str = "cpu") -> Self:
        """Load the best model of a run's folder; nothing in it is executed."""
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise InputError(f"no GPU is available here to load {run} on; use the device cpu")
        network, config, vocab = load_network(RunFolder.open(run))
        return cls(network.to(device), vocab, config)

    def perplexity(
        self, ids: Tensor | Sequence[int], predict: PredictOrSample | None = None, temperature: float = 1.0
    ) -> float:
        """Return the perplexity of a stream of ids, its first predicted from ``<eos>``."""
        return self.evaluate(ids, predict, temperature).perplexity

    def evaluate(
        self,
        ids: Tensor | Sequence[int],
        predict: PredictOrSample | None = None,
        temperature: float = 1.0,
        *,
        batch: int = 1,
        samples: int = 20,
        average: Average = "arithmetic",
        seed: int = 0,
        scales: Scales | None = None,
    ) -> Evaluation:
        """Return loss, tokens and perplexity of a stream; see ``varsmooth.evaluate.stream.evaluate``."""
        settings, chosen = self.config.evaluate, predict or self.predict
        return evaluate(
            self.network,
            self._checked(ids),
            self.vocab.eos_id,
            predict=chosen,
            temperature=temperature,
            batch=batch,
            # One draw per window: sampling uses the windows that the model was trained with.
            window=self.config.train.window if chosen == "sample" else settings.window,
            burn_in=settings.burn_in,
            samples=samples,
            average=average,
            seed=seed,
            scales=scales,
        )

    def best_temperature(self, ids: Tensor | Sequence[int], predict: Predict | None = None) -> float:
        """Return the temperature with the lowest perplexity on ``ids``, a development set, read as ``perplexity`` reads it."""
        return best_temperature(
            self.network,
            self._checked(ids),
            self.vocab.eos_id,
            predict=predict or self.predict,
            window=self.config.evaluate.window,
        )

    def best_scales(self, ids: Tensor | Sequence[int], predict: Predict | None = None) -> Scales:
        """Return the scales of context and bias with the lowest perplexity on ``ids``, a development set.

        A model of little text is too sure of what the context says; these mend more of that than a temperature can.
        """
        rule = predict or self.predict
        return self.read({"valid": ids}, [rule])["valid", rule].best_scales()

    def read(
        self, streams: Mapping[str, Tensor | Sequence[int]], predicts: Iterable[Predict]
    ) -> dict[tuple[str, Predict], Reading]:
        """Read every stream by every prediction once, for as many questions about losses and temperatures as there may be."""
        checked = {name: self._checked(ids) for name, ids in streams.items()}
        window = self.config.evaluate.window
        return read_together(self.network, checked, self.vocab.eos_id, tuple(predicts), window=window)

    def sampled(self, ids: Tensor, samples: int, seed: int = 0) -> Generator[None, None, list[Evaluation]]:
        """Evaluate draws, averaged in either way, giving way after each window; the stream is read in columns, for speed."""
        settings, window = self.config.evaluate, self.config.train.window
        batch = columns_for(self.network, settings.batch, window)
        columns = Columns.cut(self._checked(ids), self.vocab.eos_id, batch, settings.burn_in, self.network.bias.device)
        averages: tuple[Average, ...] = ("arithmetic", "geometric")
        return sampled(self.network, columns, averages, temperature=1.0, window=window, samples=samples, seed=seed)

    def score(self, lines: Iterable[str], predict: Predict | None = None, scales: Scales | None = None) -> Iterator[LineScore]:
        """Yield the score of each line as it comes; every line starts afresh after ``<eos>`` and its end is predicted too."""
        if isinstance(lines, str):
            raise InputError(
                f"score takes a list of lines, and would take each character of {lines[:40]!r} for one: pass [line]"
            )
        check_scales(scales)
        return self._scores(lines, predict or self.predict, scales)

    def _scores(self, lines: Iterable[str], rule: Predict, scales: Scales | None) -> Iterator[LineScore]:
        tables = self.network.tables(rule)
        for line in lines:
            words = line.split()
            ids = torch.tensor([*self.vocab.encode(words), self.vocab.eos_id])
            with torch.inference_mode():
                scored = evaluate(self.network, ids, self.vocab.eos_id, predict=rule, tables=tables, scales=scales)
            yield LineScore(-scored.nll * scored.tokens, scored.tokens, len(self.unknown(words)))

    def unknown(self, words: Iterable[str]) -> list[str]:
        """Return the words that are read as ``<unk>``."""
        return [word for word in words if word == UNK or word not in self.vocab]

    def count_unknown(self, ids: Tensor) -> int:
        """Return how many tokens of a stream are ``<unk>``; none where the vocabulary is closed."""
        return 0 if self.vocab.unk_id is None else int((ids == self.vocab.unk_id).sum())

    @torch.inference_mode()
    def generate(
        self,
        prompt: str,
        words: int = 30,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        predict: Predict | None = None,
        scales: Scales | None = None,
    ) -> str:
        """Return ``prompt`` continued by up to ``words`` words, or to the end of the line; ``<unk>`` is never written.

        A temperature goes over ``scales``.
        """
        tokens = prompt.split()
        _check_generation(tokens, words, temperature, top_k)
        check_scales(scales)
        device = self.network.bias.device
        tables = self.network.tables(predict or self.predict)
        state = self.network.initial_state(1)
        inputs = [self.vocab.eos_id, *self.vocab.encode(tokens)]
        for position in range(words):
            logits, state = self.network.logits(torch.tensor(inputs, device=device)[:, None], state, tables)
            last = logits[-1, 0].float()
            if scales is not None:
                last = scaled_logits(last, self.network.bias.float(), scales)
            chosen = self._choose(last.cpu() / temperature, top_k, DrawKey(seed, position, Site.GENERATE))
            if chosen == self.vocab.eos_id:
                break
            inputs = [chosen]
            tokens += self.vocab.decode(inputs)
        return " ".join(tokens)

    def _choose(self, logits: Tensor, top_k: int, key: DrawKey) -> int:
        """Draw a word by the Gumbel trick, each word with its own counter-based noise."""
        if self.vocab.unk_id is not None:
            logits[self.vocab.unk_id] = -math.inf
        if 0 < top_k < logits.numel():
            logits[logits < logits.topk(top_k).values[-1]] = -math.inf
        uniform = (row_words(key, torch.arange(logits.numel()))[0].double() + 0.5) / 2**32
        return int((logits.double() - (-uniform.log()).log()).argmax())

    def _checked(self, ids: Tensor | Sequence[int]) -> Tensor:
        ids = torch.as_tensor(ids)
        if ids.dim() != 1 or ids.numel() == 0 or ids.is_floating_point():
            raise InputError(f"ids must be a stream of at least one integer, got {ids.dtype} of shape {tuple(ids.shape)}")
        if int(ids.min()) < 0 or int(ids.max()) >= len(self.vocab):
            raise InputError(f"ids must be in [0, {len(self.vocab)}), the vocabulary, got {int(ids.min())} to {int(ids.max())}")
        return ids


def _check_generation(prompt: list[str], words: int, temperature: float, top_k: int) -> None:
    if not prompt:
        raise InputError("the prompt is empty; give at least one word to start from")
    if words < 1:
        raise InputError(f"words must be at least 1, got {words}")
    check_temperature("temperature", temperature)
    if top_k < 0:
        raise InputError(f"top_k must be 0 (all words) or more, got {top_k}")
