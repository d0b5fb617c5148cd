"""The LSTM layer's compiled kernels: values, races, graphs, and several streams at once."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from varsmooth.ops.lstm_layer import lstm_layer, reference, supported

pytestmark = pytest.mark.gpu
NAMES = ("hidden", "memory", "grad_projected", "grad_weight")


def inputs(steps: int, batch: int, width: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = (steps, batch, 4 * width), (4 * width, width), (batch, width), (batch, width), (steps, batch, width)
    drawn = [torch.randn(shape, generator=generator, device="cuda") for shape in shapes]
    projected, weight, hidden0, memory0, gradient = drawn
    return projected.to(dtype), (weight / width**0.5 / 2).to(dtype), hidden0.tanh().to(dtype), memory0, gradient.to(dtype)


def results(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    projected, weight, hidden0, memory0, gradient = given
    leaves = [tensor.detach().requires_grad_() for tensor in (projected, weight)]
    hidden, memory = lstm_layer(*leaves, hidden0, memory0)
    return hidden.detach(), memory, *torch.autograd.grad(hidden, leaves, gradient)


def exact(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """cuDNN is not asked here: torch's own loop in fp64."""
    projected, weight, hidden0, memory0, gradient = (tensor.double() for tensor in given)
    leaves = [tensor.requires_grad_() for tensor in (projected, weight)]
    hidden, memory = reference.lstm_layer(*leaves, hidden0, memory0)
    return hidden.detach(), memory, *torch.autograd.grad(hidden, leaves, gradient)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(
    ("steps", "batch", "width"),
    [(1, 1, 16), (35, 1, 48), (35, 20, 512), (35, 64, 512), (7, 100, 512), (35, 64, 1024), (5, 64, 650 // 16 * 16)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_near_the_exact_layer(steps: int, batch: int, width: int, dtype: torch.dtype):
    given = inputs(steps, batch, width, dtype)
    if not supported(given[0], given[1]):
        pytest.skip("does not fit on this GPU at once")
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    wrong = {name: relative(a, b) for name, a, b in zip(NAMES, results(given), exact(given), strict=True)}
    assert all(error < tolerance for error in wrong.values()), wrong


def test_the_usual_sizes_are_supported():
    for batch, width in ((1, 16), (20, 512), (64, 512), (64, 1024)):
        given = inputs(1, batch, width)
        assert supported(given[0], given[1])


def test_near_cudnn():
    torch.manual_seed(1)
    layer = torch.nn.LSTM(512, 512, device="cuda", dtype=torch.float64)
    x, state = torch.randn(35, 64, 512, device="cuda", dtype=torch.float64), torch.randn(2, 1, 64, 512, device="cuda").double()
    expected, (_, expected_memory) = layer(x, (state[0].tanh(), state[1]))
    projected = x @ layer.weight_ih_l0.t() + layer.bias_ih_l0 + layer.bias_hh_l0
    with torch.no_grad():
        hidden, memory = lstm_layer(
            projected.bfloat16(), layer.weight_hh_l0.bfloat16(), state[0, 0].tanh(), state[1, 0].float()
        )
    assert relative(hidden, expected) < 1e-2
    assert relative(memory, expected_memory[0]) < 1e-2


@pytest.mark.parametrize(("batch", "width"), [(64, 512), (64, 1024), (20, 512)])
def test_repeats_are_bit_identical(batch: int, width: int):
    given = inputs(35, batch, width)
    first = results(given)
    for _ in range(50):
        assert all(torch.equal(a, b) for a, b in zip(first, results(given), strict=True))


def test_a_graph_replays_it():
    given = inputs(35, 64, 512)
    expected = results(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results(given)
    for tensor in found:
        tensor.zero_()
    for _ in range(20):
        graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_four_streams_at_once_do_not_block_each_other():
    given = [inputs(35, 64, 512, seed=seed) for seed in range(4)]
    expected = [results(one) for one in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in given]
    found: list[tuple[Tensor, ...]] = [() for _ in given]
    for _ in range(20):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[number] = results(given[number])
    done = [stream.record_event() for stream in streams]
    limit = time.monotonic() + 20  # programs that wait for others that cannot start would wait for ever
    while not all(event.query() for event in done):
        if time.monotonic() > limit:
            pytest.exit("deadlock between streams", returncode=3)
        time.sleep(0.01)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
