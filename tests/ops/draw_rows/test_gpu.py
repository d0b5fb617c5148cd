"""The public functions on a GPU, at the size of a training step: the draws are those of the CPU, and nothing waits."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from varsmooth import Counts, DrawKey, EmbeddingPosterior, Proposal, noise
from varsmooth.ops.backend import reference_only
from varsmooth.ops.draw_rows import GradientSink

pytestmark = pytest.mark.gpu

V, D, T, B = 10_003, 512, 35, 64
KEY = DrawKey(3, 4, 1)


def some_proposal() -> Proposal:
    ids = torch.randint(V, (200_000,), generator=torch.Generator().manual_seed(1))
    return Proposal.kneser_ney(Counts.from_ids(ids, V), 0.5)


def some_ids() -> Tensor:
    """Words with frequencies like those of a text: some come often."""
    uniform = torch.rand(T, B, generator=torch.Generator().manual_seed(2))
    return (V**uniform - 1).long().clamp(0, V - 1)


def posterior(device: str, granularity: str = "element", scope: str = "sequence") -> EmbeddingPosterior:
    weight = torch.randn(V, D, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    return EmbeddingPosterior(weight, some_proposal(), granularity, scope, dropout=0.5)


DRAWS: dict[str, Callable[[EmbeddingPosterior, Tensor, torch.dtype], Tensor]] = {
    "table": lambda q, _ids, dtype: q.sample(KEY, 2, 3, dtype=dtype),
    "first rows": lambda q, _ids, dtype: q.sample(KEY, 2, 3, rows=V - 1, dtype=dtype),
    "lookup": lambda q, ids, dtype: q.lookup(ids, KEY, dtype=dtype),
    "replaced": lambda q, ids, dtype: q.lookup_replaced(ids, KEY, dtype=dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "granularity"), list(itertools.product(DRAWS, ["word", "element"])))
def test_draws_and_gradients_are_those_of_the_cpu(name, granularity, dtype):
    results = []
    for device in ("cpu", "cuda"):
        q = posterior(device, granularity)
        drawn = DRAWS[name](q, some_ids().to(device), dtype)
        grad = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(5)).to(drawn)
        results.append((drawn.detach().cpu(), torch.autograd.grad(drawn, q.weight, grad)[0].cpu()))
    (ours, our_grad), (theirs, their_grad) = results
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(our_grad, their_grad, rtol=1e-4, atol=1e-4)


def test_the_reference_on_a_gpu_gives_the_same():
    q = posterior("cuda")
    with reference_only():
        expected = q.lookup(some_ids().cuda(), KEY)
    assert torch.equal(q.lookup(some_ids().cuda(), KEY), expected)


def test_replaced_words_and_noise_are_those_of_the_cpu():
    here, there = posterior("cpu", "word"), posterior("cuda", "word")
    assert torch.equal(here.replaced(some_ids(), KEY), there.replaced(some_ids().cuda(), KEY).cpu())
    on_gpu = noise(some_ids().cuda(), some_ids().cuda(), some_proposal().to("cuda"), KEY, first_sequence=3)
    for ours, theirs in zip(noise(some_ids(), some_ids(), some_proposal(), KEY, first_sequence=3), on_gpu, strict=True):
        assert torch.equal(ours, theirs.cpu())


def test_scores_of_replaced_words_are_those_of_the_cpu():
    hidden = torch.randn(T, B, D, generator=torch.Generator().manual_seed(4))
    wanted = torch.arange(T * B).view(T, B) % 3 > 0
    results = []
    for device in ("cpu", "cuda"):
        q, states = posterior(device, "word"), hidden.to(device).requires_grad_()
        scores = q.score_replaced(states, some_ids().to(device), KEY, wanted.to(device))
        results.append([part.cpu() for part in (scores, *torch.autograd.grad(scores.square().sum(), (states, q.weight)))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2)


def total_of_draws(q: EmbeddingPosterior, ids: Tensor, key: DrawKey, *, shared: bool) -> Tensor:
    sink = GradientSink.of(q.weight) if shared else None
    vectors = q.lookup(ids, key, sink=sink)
    other = q.score_replaced(vectors, ids, key, ids > 5, sink=sink)
    table = q.sample(key, sink=sink, dtype=torch.bfloat16)
    return vectors.square().sum() + other.square().sum() + table.sum(dtype=torch.float32)


def test_a_sink_gives_the_same_gradient():
    q, ids = posterior("cuda", "word"), some_ids().cuda()
    shared, alone = (torch.autograd.grad(total_of_draws(q, ids, KEY, shared=s), q.weight)[0] for s in (True, False))
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-2)


def test_a_parameter_takes_the_gathered_gradient_without_a_copy():
    q, ids = posterior("cuda", "word"), some_ids().cuda()
    total = total_of_draws(q, ids, KEY, shared=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total.backward()
    assert q.weight.grad is not None
    assert torch.cuda.max_memory_allocated() - before < 2 * q.weight.numel() * 4, "one gradient, and that of the draw in bf16"


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("granularity", ["word", "element"])
def test_a_captured_step_draws_anew_and_never_waits(granularity):
    q, ids = posterior("cuda", granularity), some_ids().cuda()
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    proposal = some_proposal().to("cuda")
    result = torch.zeros((), device="cuda")

    def run() -> None:
        key = DrawKey(3, step)
        noised, labels = noise(ids, ids, proposal, key)
        total = q.lookup(noised, key).square().sum() + q.sample(key).square().sum() + labels.sum()
        total = total + q.lookup_replaced(labels, key).square().sum()
        (grad,) = torch.autograd.grad(total, q.weight)
        result.copy_(total.detach() + grad.abs().sum())
        step.add_(1)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()  # compiles, and fills the caches
        stream.synchronize()
        with waiting_is_an_error():
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for start in (7, 8):
        step.fill_(start)
        graph.replay()
        found.append(float(result))
        step.fill_(start)
        run()
        assert float(result) == pytest.approx(found[-1], rel=1e-4)
    assert found[0] != found[1]
