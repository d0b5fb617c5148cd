from __future__ import annotations

import math

import pytest
import torch

from networks_for_tests import WORDS, some_ids, some_network
from varsmooth.evaluate.bands import BOUNDS, Band, frequency_bands
from varsmooth.evaluate.columns import Columns
from varsmooth.evaluate.reading import read

EOS = 2
COUNTS = torch.tensor([0, 1, 9, 10, 99, 100, 999, 1000, 10**7])


def test_targets_fall_into_the_band_of_their_training_count():
    targets = torch.tensor([8, 0, 1, 2, 2, 3, 4, 5, 6, 7])
    losses = 2.0 ** torch.arange(10)
    found = frequency_bands(losses, targets, COUNTS)
    assert found == [
        Band(0, 0, 1, 2.0),
        Band(1, 9, 3, 4.0 + 8 + 16),
        Band(10, 99, 2, 32.0 + 64),
        Band(100, 999, 2, 128.0 + 256),
        Band(1000, None, 2, 1.0 + 512),
    ]
    assert found[1].perplexity == pytest.approx(math.exp(28 / 3))


def test_a_band_without_tokens_has_no_perplexity_and_a_hopeless_one_an_infinite():
    found = frequency_bands(torch.tensor([800.0]), torch.tensor([3]), COUNTS)
    assert [band.perplexity for band in found] == [None, None, math.inf, None, None]
    assert [band.tokens for band in found] == [0, 0, 1, 0, 0]


def test_the_bands_of_a_reading_add_up_to_its_loss():
    network, ids = some_network(output="table"), some_ids(301)
    reading = read(network, Columns.cut(ids, EOS, 4, 10, ids.device), network.tables("mean"), "mean", 9)
    judged = reading.judged(1.3)
    assert torch.equal(reading.targets(), ids)
    assert torch.equal(judged.nll, reading.token_nll(1.3)), "one pass gives what the other gives"
    counts = torch.arange(WORDS) ** 3
    bands = frequency_bands(judged.nll, reading.targets(), counts)
    whole = reading.evaluate(1.3)
    assert len(bands) == len(BOUNDS)
    assert all(band.tokens for band in bands)
    assert sum(band.tokens for band in bands) == whole.tokens == 301
    assert math.fsum(band.nll for band in bands) / 301 == pytest.approx(whole.nll, rel=1e-14)


def test_the_sums_are_taken_in_double_precision():
    """In single precision, ones added to 2**24 would be lost."""
    losses = torch.tensor([2.0**24, 1.0, 1.0, 1.0])
    assert frequency_bands(losses, torch.zeros(4, dtype=torch.int64), COUNTS)[0].nll == 2.0**24 + 3
