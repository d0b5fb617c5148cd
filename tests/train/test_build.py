"""What a configuration asks for reaches the objects that are built from it."""

from __future__ import annotations

import pytest
import torch

from varsmooth.config import override
from varsmooth.recipe import load_recipe
from varsmooth.text.counts import Counts
from varsmooth.train.build import build_proposal

COUNTS = Counts.from_ids(torch.tensor([0, 1, 0, 2, 0, 1, 3]), 5)


@pytest.mark.parametrize(
    "row", ["smoothing-kneser-ney", "element-linear-interpolation", "noising-kneser-ney", "smoothing-blank"]
)
def test_rare_words_are_spared_where_asked_for(row):
    config = load_recipe(row)
    every, some = (build_proposal(override(config, [f"smoothing.spare_below={below}"]), COUNTS) for below in (0, 2))
    assert torch.equal(build_proposal(config, COUNTS).rate, every.rate), "nobody is spared unless asked for"
    assert torch.equal(some.rate[:2], every.rate[:2])
    assert every.rate[2] > 0
    assert not some.rate[2:5].any()
    assert torch.equal(some.probs, every.probs)
    assert build_proposal(load_recipe("vanilla"), COUNTS) is None
