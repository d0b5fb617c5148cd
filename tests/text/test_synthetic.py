from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from varsmooth.errors import InputError
from varsmooth.text import EOS, MarkovSource
from varsmooth.text.synthetic import ClassSource, synthetic_corpus


@pytest.mark.parametrize(("vocab_size", "branching"), [(2, 2), (7, 3), (200, 10), (60, 60)])
def test_rows_are_distributions_and_the_stationary_one_stays(vocab_size: int, branching: int) -> None:
    source = MarkovSource(vocab_size, branching)
    assert ((source.transitions > 0).sum(axis=1) == branching).all()
    np.testing.assert_allclose(source.transitions.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(source.stationary @ source.transitions, source.stationary, atol=1e-14)
    assert source.stationary.sum() == pytest.approx(1.0, abs=1e-12)
    assert (source.stationary > 0).all()


def test_entropy_rate_by_hand() -> None:
    source = MarkovSource(3, 2, seed=5)
    by_hand = 0.0
    for row in range(3):
        for column in range(3):
            p = source.transitions[row, column]
            if p > 0:
                by_hand -= source.stationary[row] * p * math.log(p)
    assert source.entropy_rate == pytest.approx(by_hand, rel=1e-12)
    assert source.perplexity == pytest.approx(math.exp(by_hand), rel=1e-12)


def test_a_long_sample_has_the_entropy_rate() -> None:
    # Means of 400 long blocks are nearly independent; 4 standard errors fail for one seed in about 16,000.
    source = MarkovSource()
    blocks = source.token_nll(source.sample(400_000, seed=1)).reshape(400, 1000).mean(dim=1)
    standard_error = float(blocks.std()) / math.sqrt(400)
    assert standard_error < 0.005
    assert abs(float(blocks.mean()) - source.entropy_rate) < 4 * standard_error


def test_sample_frequencies_are_stationary() -> None:
    source = MarkovSource(20, 5)
    frequencies = source.sample(200_000, seed=2).bincount(minlength=20) / 200_000
    assert np.abs(frequencies.numpy() - source.stationary).max() < 0.01


def test_words_are_zipfian() -> None:
    masses = np.sort(MarkovSource().stationary)[::-1]
    ranks = np.arange(8, 128)
    slope = np.polyfit(np.log(ranks), np.log(masses[ranks - 1]), 1)[0]
    assert -1.3 < slope < -0.7


def test_same_seed_same_source_and_sample() -> None:
    one, same, other = MarkovSource(seed=3), MarkovSource(seed=3), MarkovSource(seed=4)
    assert (one.transitions == same.transitions).all()
    assert (one.transitions != other.transitions).any()
    assert torch.equal(one.sample(500, 1), same.sample(500, 1))
    assert not torch.equal(one.sample(500, 1), one.sample(500, 2))
    assert torch.equal(one.sample(500, 1)[:100], one.sample(100, 1))


def test_token_nll_looks_one_word_back_and_starts_after_eos() -> None:
    source = MarkovSource(5, 2)
    ids = [1, 2, 3]
    expected = [-math.log(source.transitions[before, now]) for before, now in [(0, 1), (1, 2), (2, 3)]]
    assert source.token_nll(ids).tolist() == pytest.approx(expected)
    assert source.optimal_nll(torch.tensor(ids)) == pytest.approx(sum(expected) / 3)


def test_impossible_steps_cost_infinitely_much() -> None:
    source = MarkovSource(50, 2)
    impossible = int(np.flatnonzero(source.transitions[0] == 0)[0])
    assert source.optimal_nll([impossible]) == math.inf


def test_sample_never_takes_an_impossible_step() -> None:
    source = MarkovSource(300, 4)
    assert torch.isfinite(source.token_nll(source.sample(50_000, seed=0))).all()


def test_corpus_has_the_ids_of_its_source() -> None:
    source = MarkovSource(50, 5, seed=1)
    corpus = synthetic_corpus(source, train=3000, valid=400, test=400, seed=2)
    assert torch.equal(corpus.train, source.sample(3000, 6)[: len(corpus.train)])
    assert corpus.vocab.words[0] == EOS
    assert len(corpus.vocab) == 50
    assert corpus.train[-1] == 0
    assert 2800 < len(corpus.train) <= 3000
    assert math.isfinite(source.optimal_nll(corpus.test))
    assert not torch.equal(corpus.valid[:300], corpus.test[:300])


def test_corpus_with_a_vocabulary_built_from_train() -> None:
    corpus = synthetic_corpus(train=5000, valid=500, test=500, max_words=30)
    assert len(corpus.vocab) == 30
    assert corpus.vocab.unk_id is not None


def test_default_corpus_is_about_as_large_as_said() -> None:
    corpus = synthetic_corpus()
    assert 99_000 < len(corpus.train) <= 100_000
    assert 9_500 < len(corpus.valid) <= 10_000
    assert 9_500 < len(corpus.test) <= 10_000


@pytest.mark.parametrize("arguments", [(1, 2), (5000, 2), (10, 1), (10, 11)])
def test_impossible_sources(arguments: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="must be between"):
        MarkovSource(*arguments)


def test_too_few_tokens_for_a_line() -> None:
    with pytest.raises(InputError, match="too few for one line"):
        synthetic_corpus(test=0)


def test_words_of_classes_by_hand() -> None:
    source = ClassSource(words=7, classes=3, branching=2, seed=5)
    # Class 0 has the words 0, 3 and 6, the others two each.
    within = {3: [6 / 11, 3 / 11, 2 / 11], 2: [2 / 3, 1 / 3]}
    entropies = [-sum(p * math.log(p) for p in within[size]) for size in (3, 2, 2)]
    by_hand = source.chain.entropy_rate + sum(p * h for p, h in zip(source.chain.stationary, entropies, strict=True))
    assert source.perplexity == pytest.approx(math.exp(by_hand), rel=1e-12)
    ids = source.sample(100_000, seed=1)
    assert (ids.dtype, ids.min(), ids.max()) == (torch.int64, 0, 6)
    assert torch.equal(ids % 3, source.chain.sample(100_000, seed=1))
    for number, size in enumerate((3, 2, 2)):
        ranks = ids[ids % 3 == number] // 3
        found = ranks.bincount(minlength=size) / len(ranks)
        assert found.tolist() == pytest.approx(within[size], abs=0.02)


def test_a_language_of_classes_is_the_same_again_and_has_as_many_words_as_asked_for() -> None:
    ids = ClassSource(267_735).sample(50_000, seed=1)
    assert torch.equal(ids, ClassSource(267_735).sample(50_000, seed=1))
    assert not torch.equal(ids, ClassSource(267_735).sample(50_000, seed=2))
    assert 200_000 < ids.max() < 267_735
    assert ClassSource(64).perplexity == pytest.approx(ClassSource(64).chain.perplexity), "a class for each word"
    with pytest.raises(InputError, match="words must be at least classes"):
        ClassSource(63)
