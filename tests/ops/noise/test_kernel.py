"""The kernel against the reference, word for word; without a GPU in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from varsmooth import DrawKey, Proposal
from varsmooth.ops.noise import reference
from varsmooth.ops.places import Places

pytest.importorskip("triton")

from varsmooth.ops.noise import kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def some_proposal(rate: float = 0.5, words: int = 5) -> Proposal:
    probs = torch.rand(words, generator=torch.Generator().manual_seed(words))
    return Proposal(torch.full((words,), rate), probs / probs.sum(), noises_output=True).to(DEVICE)


@pytest.mark.parametrize("key", [DrawKey(3, 4, 4), DrawKey(2**32 - 1, 2**32 - 1, 4)])
@pytest.mark.parametrize("labels", [True, False])
def test_the_same_words_are_replaced_by_the_same_words(key, labels):
    inputs = (torch.arange(35 * 9).view(35, 9) % 5).to(DEVICE)
    targets = (inputs + 1) % 5 if labels else None
    places = Places(9, sequence=2, by_sequence=True, by_position=True)
    found, expected = (module.noise(inputs, targets, some_proposal(), key, places) for module in (kernel, reference))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None) == (not labels and theirs is None)
        assert ours is None or torch.equal(ours, theirs)
    assert 0.2 < float((found[0] != inputs).float().mean()) < 0.6


@pytest.mark.parametrize(("rate", "words"), [(0.0, 3), (1.0, 3), (1.0, 1)])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (0, 3)])
def test_rates_and_shapes_at_the_edge(rate, words, shape):
    inputs = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
    places = Places(shape[1], by_sequence=True, by_position=True)
    found, expected = (
        module.noise(inputs, inputs, some_proposal(rate, words), DrawKey(1), places) for module in (kernel, reference)
    )
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert rate > 0 or torch.equal(found[0], inputs)


def test_a_window_may_be_a_view_of_another():
    inputs = (torch.arange(24).view(4, 6) % 5).to(DEVICE)
    places = Places(3, sequence=3, by_sequence=True, by_position=True)
    for view in (inputs[:, 3:], inputs[:, :4].T.contiguous().T[:, :3]):
        found, expected = (module.noise(view, view, some_proposal(), DrawKey(1), places) for module in (kernel, reference))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
