"""The compiled kernels of LSTM layers: values, races, graphs, and several streams at once."""

from __future__ import annotations

import time
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from varsmooth.evaluate.precision import full_precision
from varsmooth.ops.lstm_layer import Weights, lstm_layers, reference, supported

pytestmark = pytest.mark.gpu
NAMES = ("outputs", "hidden", "memory", "grad_inputs", "grad_ih", "grad_hh", "grad_bias")
Given: TypeAlias = tuple[Tensor, ...]
"""Inputs, ih, hh, bias, the state that comes in, and the gradient of the outputs."""


def make(steps: int, batch: int, width: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Given:
    generator = torch.Generator("cuda").manual_seed(seed)

    def randn(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator, device="cuda") * scale).to(dtype)

    matrices = [randn(4 * width, width, scale=0.5 / width**0.5) for _ in range(2)]
    state = randn(1, batch, width).tanh().float(), randn(1, batch, width).float()
    return randn(steps, batch, width), *matrices, randn(4 * width), *state, randn(steps, batch, width)


def results(given: Given, run=lstm_layers, update: Tensor | None = None) -> tuple[Tensor, ...]:
    inputs, ih, hh, bias, hidden0, memory0, gradient = given
    leaves = [tensor.detach().requires_grad_() for tensor in (inputs, ih, hh, bias)]
    outputs, state = run([Weights(*leaves[1:])], leaves[0], hidden0, memory0, None if update is None else [update])
    return outputs.detach(), *state, *torch.autograd.grad(outputs, leaves, gradient)


def exact(given: Given, update: Tensor | None = None) -> tuple[Tensor, ...]:
    """cuDNN is not asked here: torch's own loop in fp64."""
    return results(tuple(tensor.double() for tensor in given), reference.lstm_layers, update)


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def equal(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> dict[str, bool]:
    return {name: torch.equal(a, b) for name, a, b in zip(NAMES, one, other, strict=True)}


ALL_EQUAL = dict.fromkeys(NAMES, True)


@pytest.mark.parametrize(
    ("steps", "batch", "width"),
    [
        (1, 1, 16),
        (35, 1, 48),
        (35, 20, 512),
        (35, 32, 512),
        (35, 64, 512),
        (7, 100, 512),
        (7, 128, 512),
        (35, 20, 1024),
        (35, 64, 1024),
        (5, 64, 640),
    ],
)
def test_near_the_exact_layer(steps: int, batch: int, width: int):
    given = make(steps, batch, width)
    assert supported(given[2], batch)
    wrong = {name: relative(a, b) for name, a, b in zip(NAMES, results(given), exact(given), strict=True)}
    assert all(error < 1e-2 for error in wrong.values()), wrong


@pytest.mark.parametrize(("steps", "batch", "width"), [(35, 1, 48), (35, 20, 512), (35, 64, 512), (35, 64, 1024)])
def test_near_the_exact_layer_with_dropped_updates(steps: int, batch: int, width: int):
    given = make(steps, batch, width)
    update = (torch.rand(steps, batch, width, device="cuda", generator=torch.Generator("cuda").manual_seed(1)) > 0.2) * 1.25
    found, expected = results(given, update=update), exact(given, update)
    wrong = {name: relative(a, b) for name, a, b in zip(NAMES, found, expected, strict=True)}
    assert all(error < 1e-2 for error in wrong.values()), wrong
    assert equal(found, results(given, update=update)) == ALL_EQUAL


@pytest.mark.parametrize(("steps", "batch", "width"), [(1, 1, 16), (35, 20, 48), (9, 64, 256)])
def test_near_the_exact_layer_in_fp32(steps: int, batch: int, width: int):
    given = make(steps, batch, width, torch.float32)
    assert supported(given[2], batch)
    with full_precision(torch.device("cuda")):
        wrong = {name: relative(a, b) for name, a, b in zip(NAMES, results(given), exact(given), strict=True)}
    assert all(error < 1e-5 for error in wrong.values()), wrong


def test_near_cudnn_in_two_layers():
    torch.manual_seed(1)
    module = torch.nn.LSTM(512, 512, 2, device="cuda", dtype=torch.float64)
    inputs, state = torch.randn(35, 64, 512, device="cuda"), torch.randn(2, 2, 64, 512, device="cuda")
    expected, expected_state = module(inputs.double(), (state[0].tanh().double(), state[1].double()))
    layers = []
    for number in range(2):
        ih, hh, first_bias, second_bias = (tensor.detach().bfloat16() for tensor in module.all_weights[number])
        layers.append(Weights(ih, hh, first_bias + second_bias))
    outputs, found_state = lstm_layers(layers, inputs.bfloat16(), state[0].tanh(), state[1])
    for one, other in zip((outputs, *found_state), (expected, *expected_state), strict=True):
        assert relative(one, other) < 1e-2


@pytest.mark.parametrize(("batch", "width"), [(64, 512), (64, 1024), (20, 512)])
def test_repeats_are_bit_identical(batch: int, width: int):
    given = make(35, batch, width)
    first = results(given)
    for _ in range(50):
        assert equal(first, results(given)) == ALL_EQUAL


def test_a_graph_replays_it():
    given = make(35, 64, 512)
    expected = results(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results(given)
    for tensor in found:
        tensor.zero_()
    for _ in range(20):
        graph.replay()
    assert equal(expected, found) == ALL_EQUAL


def test_a_retained_graph_gives_the_same_gradients_again():
    inputs, ih, hh, bias, hidden0, memory0, gradient = make(35, 64, 512)
    inputs.requires_grad_()
    bias.requires_grad_()
    outputs, _ = lstm_layers([Weights(ih, hh, bias)], inputs, hidden0, memory0)
    first = torch.autograd.grad(outputs, [inputs, bias], gradient, retain_graph=True)
    for _ in range(20):
        again = torch.autograd.grad(outputs, [inputs, bias], gradient, retain_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_four_streams_at_once_do_not_block_each_other():
    given = [make(35, 64, 512, seed=seed) for seed in range(4)]
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
        assert equal(one, other) == ALL_EQUAL
