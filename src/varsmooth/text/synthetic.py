"""A made-up language whose best possible perplexity is known: a Markov source with Zipfian words."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from varsmooth.errors import InputError
from varsmooth.text.splits import Corpus
from varsmooth.text.vocab import EOS, Vocab

MAX_VOCAB = 4096

Floats = npt.NDArray[np.float64]


class MarkovSource:
    """Words that depend on the word before alone; word 0 is ``<eos>``, and a stream starts as if after one.

    Each word has ``branching`` possible successors, drawn by Zipf's law and weighted at random.
    """

    def __init__(self, vocab_size: int = 200, branching: int = 10, seed: int = 0) -> None:
        if not 2 <= vocab_size <= MAX_VOCAB:
            raise InputError(f"vocab_size must be between 2 and {MAX_VOCAB}, not {vocab_size}")
        if not 2 <= branching <= vocab_size:
            raise InputError(f"branching must be between 2 and vocab_size ({vocab_size}), not {branching}")
        self.vocab_size = vocab_size
        self.branching = branching
        self.seed = seed
        self.transitions = _transitions(vocab_size, branching, _generator(seed, 0))
        self.stationary = _stationary(self.transitions)
        cumulative = np.cumsum(self.transitions, axis=1)
        # Dividing by itself makes the last entry exactly 1, so that no draw falls behind the last successor.
        self._cumulative: list[list[float]] = (cumulative / cumulative[:, -1:]).tolist()

    @property
    def vocab(self) -> Vocab:
        """The words in the order of their ids, so that a corpus over it has the source's own ids."""
        return Vocab((EOS, *(f"w{row}" for row in range(1, self.vocab_size))))

    @property
    def entropy_rate(self) -> float:
        """Nats per token: ``-sum_i pi_i sum_j P_ij log P_ij``, exactly."""
        logs = np.log(np.where(self.transitions > 0, self.transitions, 1.0))
        return float(-(self.stationary @ (self.transitions * logs).sum(axis=1)))

    @property
    def perplexity(self) -> float:
        """The perplexity that no model can beat in the long run."""
        return math.exp(self.entropy_rate)

    def sample(self, n: int, seed: int) -> torch.Tensor:
        """Return a stream of ``n`` ids."""
        word = 0
        ids = []
        for uniform in _generator(self.seed, 1, seed).random(n).tolist():
            word = bisect_right(self._cumulative[word], uniform)
            ids.append(word)
        return torch.tensor(ids, dtype=torch.int64)

    def text(self, n: int, seed: int) -> str:
        """Return the whole lines of a stream of ``n`` tokens as text."""
        words = self.vocab.words
        stream = " ".join(words[row] for row in self.sample(n, seed).tolist())
        lines = stream.split(EOS)[:-1]
        if not lines:
            raise InputError(f"{n} tokens are too few for one line of the synthetic source; ask for more")
        return "".join(f"{line.strip()}\n" for line in lines)

    def token_nll(self, ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """Return the true ``-log p`` of each token given the one before; infinite where the source cannot go."""
        now = np.asarray(ids, dtype=np.int64)
        before = np.concatenate([[0], now[:-1]])
        with np.errstate(divide="ignore"):
            return torch.from_numpy(-np.log(self.transitions[before, now]))

    def optimal_nll(self, ids: torch.Tensor | Sequence[int]) -> float:
        """Return the true mean nats per token of a stream: what a perfect model would score on it."""
        return float(self.token_nll(ids).mean())


class ClassSource:
    """A language of as many words as one likes: classes follow each other as the words of a ``MarkovSource`` do.

    Word ``i`` is of class ``i % classes``; within a class words have Zipf's frequencies, the smaller number the more frequent.
    """

    def __init__(self, words: int, classes: int = 64, branching: int = 8, seed: int = 0) -> None:
        if words < classes:
            raise InputError(f"words must be at least classes ({classes}), not {words}")
        self.words = words
        self.chain = MarkovSource(classes, branching, seed)

    @property
    def perplexity(self) -> float:
        """The perplexity that no model can beat in the long run, exactly: a word tells its class."""
        within = [_zipf_entropy(self._words_of(each)) for each in range(self.chain.vocab_size)]
        return math.exp(self.chain.entropy_rate + float(self.chain.stationary @ np.array(within)))

    def sample(self, n: int, seed: int) -> torch.Tensor:
        """Return a stream of ``n`` ids."""
        classes = self.chain.sample(n, seed).numpy()
        cumulative = np.cumsum(1 / np.arange(1, self._words_of(0) + 1))
        # Classes differ by one word at most, the last of a class, so that one list of sums serves all.
        of_class = np.array([self._words_of(each) for each in range(self.chain.vocab_size)])[classes]
        uniform = _generator(self.chain.seed, 2, seed).random(n) * cumulative[of_class - 1]
        ranks = np.minimum(np.searchsorted(cumulative, uniform, side="right"), of_class - 1)
        return torch.from_numpy(ranks * self.chain.vocab_size + classes)

    def _words_of(self, number: int) -> int:
        return (self.words - 1 - number) // self.chain.vocab_size + 1


def synthetic_corpus(
    source: MarkovSource | None = None,
    *,
    train: int = 100_000,
    valid: int = 10_000,
    test: int = 10_000,
    seed: int = 0,
    min_count: int | None = None,
    max_words: int | None = None,
    vocab: Vocab | None = None,
    max_tokens: int | None = None,
) -> Corpus:
    """Sample a corpus of about these many tokens per split, cut to whole lines.

    Its ids are the source's own unless ``min_count``, ``max_words`` or ``vocab`` ask for another vocabulary.
    """
    source = source or MarkovSource()
    sizes = {"train": train, "valid": valid, "test": test}
    texts = {split: source.text(size, 3 * seed + place) for place, (split, size) in enumerate(sizes.items())}
    if vocab is None and min_count in (None, 1) and max_words is None:
        vocab = source.vocab
    return Corpus.from_texts(
        texts, name="synthetic", min_count=min_count, max_words=max_words, vocab=vocab, max_tokens=max_tokens
    )


def _transitions(vocab_size: int, branching: int, generator: np.random.Generator) -> Floats:
    # An exponential race picks successors by Zipf's law.
    races = generator.exponential(size=(vocab_size, vocab_size)) * (np.arange(vocab_size) + 3.7)
    # The ring 0 -> 1 -> ... -> 0 reaches every word, and the loop at 1 breaks its period.
    rows = np.arange(vocab_size)
    races[rows, (rows + 1) % vocab_size] = 0.0
    races[1, 1] = 0.0
    successors = np.argsort(races, axis=1, kind="stable")[:, :branching]
    weights = 0.2 + generator.exponential(size=successors.shape)
    transitions = np.zeros((vocab_size, vocab_size))
    np.put_along_axis(transitions, successors, weights / weights.sum(axis=1, keepdims=True), axis=1)
    return transitions


def _stationary(transitions: Floats) -> Floats:
    """Solve ``pi P = pi`` with ``sum pi = 1``: the last balance equation follows from the others and gives way."""
    system = transitions.T - np.eye(len(transitions))
    system[-1] = 1.0
    right = np.zeros(len(transitions))
    right[-1] = 1.0
    solution: Floats = np.linalg.solve(system, right).astype(np.float64)
    return solution


def _zipf_entropy(words: int) -> float:
    weights = 1 / np.arange(1, words + 1)
    chances = weights / weights.sum()
    return float(-(chances * np.log(chances)).sum())


def _generator(*keys: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(keys)))
