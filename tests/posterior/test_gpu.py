"""The same seed gives the same draws on the CPU and on a GPU: integers exactly, so the values too."""

from __future__ import annotations

import itertools

import pytest
import torch

from varsmooth import Counts, DrawKey, EmbeddingPosterior, Proposal, noise

V, D, T, B = 1_003, 37, 11, 6


def proposal() -> Proposal:
    ids = torch.randint(V, (20_000,), generator=torch.Generator().manual_seed(1))
    return Proposal.kneser_ney(Counts.from_ids(ids, V), 0.5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("granularity", "scope", "dropout", "dropout_granularity"),
    list(itertools.product(["word", "element"], ["sequence", "batch", "position"], [0.0, 0.5], ["word", "element"])),
)
def test_draws_are_the_same_on_the_gpu(granularity, scope, dropout, dropout_granularity):
    weight = torch.randn(V, D, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(V, (T, B), generator=torch.Generator().manual_seed(2))
    here, there = (
        EmbeddingPosterior(weight.to(device).requires_grad_(), proposal(), granularity, scope, dropout, dropout_granularity)
        for device in ("cpu", "cuda")
    )
    key = DrawKey(3, 4, 1)
    for draw in (lambda q: q.sample(key, 2, 3), lambda q: q.lookup(ids.to(q.weight.device), key)):
        assert torch.equal(draw(here), draw(there).cpu())
        gradients = [torch.autograd.grad(draw(q).square().sum(), q.weight)[0].cpu() for q in (here, there)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    assert torch.equal(draw(there), draw(there)), "two calls, one draw"


@pytest.mark.gpu
def test_variance_and_noising_agree_on_the_gpu():
    weight = torch.zeros(V, D)
    here, there = (EmbeddingPosterior(weight.to(d), None, variance=2.0).sample(5).cpu() for d in ("cpu", "cuda"))
    torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)
    ids = torch.randint(V, (T, B), generator=torch.Generator().manual_seed(2))
    on_gpu = noise(ids.cuda(), ids.cuda(), proposal().to("cuda"), 9)
    for ours, theirs in zip(noise(ids, ids, proposal(), 9), on_gpu, strict=True):
        assert torch.equal(ours, theirs.cpu())
