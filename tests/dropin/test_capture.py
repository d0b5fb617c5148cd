"""Models whose steps are captured or compiled down to machine code: draws are those of an eager model."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch
from torch import nn

from dropin_for_tests import TIME, WIDTH, WORDS, gradients, ids, loss_of, proposal
from varsmooth import smooth


class Model(nn.Module):
    """Nothing that waits for the host, nothing that a compiler leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(TIME, WIDTH))
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.words.weight

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = self.words(given) + self.places
        weights = (hidden @ hidden.transpose(1, 2)).tril().softmax(-1)
        return self.head(self.body(weights @ hidden) + hidden)


def model() -> Model:
    torch.manual_seed(4)
    return Model()


def pass_of(each: nn.Module, given: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = loss_of(each(given), targets)
    loss.backward()
    return loss


@pytest.mark.parametrize("output", ["table", "none"])
def test_a_step_in_a_tensor_draws_as_the_number_in_it(output):
    by_number, by_tensor = model(), model()
    handles = [smooth(each, proposal(), output=output, dropout=0.2, advance="manual") for each in (by_number, by_tensor)]
    step = torch.zeros((), dtype=torch.int64)
    handles[1].step(step)
    seen = []
    for number in (0, 1, 7):
        handles[0].step(number)
        step.fill_(number)
        for each in (by_number, by_tensor):
            each.zero_grad()
            pass_of(each, ids(), ids(seed=1))
        assert all(torch.equal(gradients(by_tensor)[name], value) for name, value in gradients(by_number).items())
        seen.append(gradients(by_tensor)["words.weight"])
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.gpu
@pytest.mark.parametrize("scope", ["sequence", "batch"])
@pytest.mark.parametrize("granularity", ["word", "element"])
def test_a_captured_step_draws_anew_at_each_replay(granularity, scope):
    """The whole forward and backward pass as one CUDA graph, whose step lies in a tensor on the card."""
    eager, captured = model().cuda(), model().cuda()
    options = {"granularity": granularity, "scope": scope, "dropout": 0.2, "advance": "manual"}
    handles = [smooth(each, proposal(), **options) for each in (eager, captured)]
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    handles[1].step(step)
    given, targets = ids().cuda(), ids(seed=99).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            captured.zero_grad(set_to_none=True)
            pass_of(captured, given, targets)
    torch.cuda.current_stream().wait_stream(side)
    captured.zero_grad(set_to_none=True)  # so that replays write gradients, and do not add to them
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = pass_of(captured, given, targets)
    losses = []
    for number in range(4):
        given.copy_(ids(seed=number % 2))
        step.fill_(number)
        graph.replay()
        handles[0].step(number)
        eager.zero_grad()
        expected = pass_of(eager, ids(seed=number % 2).cuda(), targets)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients(captured), gradients(eager), rtol=1e-4, atol=1e-5)
        losses.append(float(loss.detach()))
    assert len(set(losses)) == 4, "the same ids with new draws give another loss"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, as it imports its compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_model_that_inductor_compiles_draws_as_an_eager_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    eager, inner = model(), model()
    handles = [smooth(each, proposal(), dropout=0.2) for each in (eager, inner)]
    compiled = torch.compile(inner, options={"compile_threads": 1})  # a pool of compilers takes longer to start than it saves
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (eager, inner)]
    for step in range(3):
        for each in (eager, compiled):
            each.zero_grad()
            pass_of(each, ids(seed=step), ids(seed=99))
        torch.testing.assert_close(gradients(inner), gradients(eager))
        for optimizer in optimizers:
            optimizer.step()
    assert [handle.current_step for handle in handles] == [3, 3]
    assert list(tmp_path.rglob("*.cpp")), "nothing was compiled"
