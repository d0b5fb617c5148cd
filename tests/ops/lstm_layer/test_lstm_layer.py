"""The kernels of LSTM layers, interpreted, against the plain loop; and which sizes they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from varsmooth.model.recurrent_run import DrawnLayer, DrawnMatrix, run_stepwise
from varsmooth.ops.lstm_layer import Weights, lstm_layers, reference, supported
from varsmooth.ops.lstm_layer import blocks as sizes
from varsmooth.ops.lstm_layer.blocks import Blocks, Gpu

kernel = pytest.importorskip("varsmooth.ops.lstm_layer.kernel")
interpreted = pytest.mark.skipif(not kernel.INTERPRETED, reason="compiled kernels are tested on their own")
SMALL = Blocks(16, 16, 2)
H200 = Gpu(132, 227 * 1024)


class Given(NamedTuple):
    """A window of inputs, the layers, the state that comes in, the gradient of the outputs, and what multiplies candidates."""

    inputs: Tensor
    layers: list[Weights]
    hidden0: Tensor
    memory0: Tensor
    gradient: Tensor
    updates: list[Tensor] | None = None

    def to(self, dtype: torch.dtype) -> Given:
        layers = [Weights(*(tensor.to(dtype) for tensor in weights)) for weights in self.layers]
        state = self.hidden0.to(dtype), self.memory0.to(dtype)
        return Given(self.inputs.to(dtype), layers, *state, self.gradient.to(dtype), self.updates)


def make(
    steps: int,
    batch: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    layers: int = 1,
    wide: int = 8,
    dropped: bool = False,
) -> Given:
    generator = torch.Generator().manual_seed(steps + 10 * batch + 100 * width)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def weights(columns: int) -> Weights:
        parts = randn(4 * width, columns) / columns**0.5, randn(4 * width, width) / width**0.5, randn(4 * width)
        return Weights(*(part.to(dtype) for part in parts))

    state = randn(layers, batch, width).tanh(), randn(layers, batch, width)
    stacked = [weights(wide if number == 0 else width) for number in range(layers)]
    window = randn(steps, batch, wide).to(dtype), stacked, *state, randn(steps, batch, width).to(dtype)
    # Neither 0 nor one scale, as dropout's are: what takes one element's for another's shows.
    return Given(*window, [randn(steps, batch, width) for _ in range(layers)] if dropped else None)


def results(run: Callable[..., Any], given: Given, **options: Blocks) -> dict[str, Tensor]:
    inputs = given.inputs.clone().requires_grad_()
    layers = [Weights(*(tensor.clone().requires_grad_() for tensor in weights)) for weights in given.layers]
    outputs, state = run(layers, inputs, given.hidden0, given.memory0, given.updates, **options)
    assert outputs.dtype == inputs.dtype
    assert {part.dtype for part in state} == {torch.promote_types(inputs.dtype, torch.float32)}
    assert not any(part.requires_grad for part in state)
    outputs.backward(given.gradient)
    found = {"outputs": outputs.detach(), "hidden": state[0], "memory": state[1], "inputs": inputs.grad}
    for number, weights in enumerate(layers):
        found |= {f"{name} {number}": tensor.grad for name, tensor in weights._asdict().items()}
    return found


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert {name: torch.equal(found[name], expected[name]) for name in found} == dict.fromkeys(found, True)


@interpreted
@pytest.mark.parametrize(
    ("steps", "batch", "width", "blocks"),
    [
        (1, 1, 16, SMALL),
        (3, 1, 48, SMALL),  # three unit blocks, and a contraction that is no power of two
        (2, 20, 16, SMALL),  # two groups of sequences, the second with four
        (2, 20, 48, Blocks(8, 16, 1)),  # three groups, whose sums are added as if there were four
        (2, 35, 48, Blocks(32, 32, 4)),  # the second unit block is half empty
        (2, 3, 256, Blocks(8, 128)),
        (2, 5, 128, Blocks(8, 64, 4)),
    ],
)
@pytest.mark.parametrize("dropped", [False, True])
def test_interpreted_kernels_equal_the_loop_in_fp32(steps: int, batch: int, width: int, blocks: Blocks, dropped: bool):
    given = make(steps, batch, width, dropped=dropped)
    found = results(kernel.lstm_layers, given, blocks=blocks)
    for name, expected in results(reference.lstm_layers, given).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@interpreted
@pytest.mark.parametrize(("steps", "batch", "width", "layers"), [(1, 1, 16, 1), (3, 20, 32, 1), (2, 5, 48, 1), (3, 4, 16, 2)])
@pytest.mark.parametrize("dropped", [False, True])
def test_interpreted_kernels_are_near_the_exact_loop_in_bf16(steps: int, batch: int, width: int, layers: int, dropped: bool):
    given = make(steps, batch, width, torch.bfloat16, layers, dropped=dropped)
    found = results(kernel.lstm_layers, given, blocks=SMALL)
    exact = results(reference.lstm_layers, given.to(torch.float64))
    assert found["ih 0"].dtype == found["hh 0"].dtype == found["bias 0"].dtype == torch.bfloat16
    wrong = {name: relative(found[name], expected) for name, expected in exact.items()}
    assert all(error < 1e-2 for error in wrong.values()), wrong


@interpreted
def test_layers_together_equal_layers_one_by_one():
    given = make(2, 5, 16, layers=2, wide=16)
    outputs, state = kernel.lstm_layers(given.layers, given.inputs, given.hidden0, given.memory0, blocks=SMALL)
    inputs = given.inputs
    for number, weights in enumerate(given.layers):
        one = slice(number, number + 1)
        inputs, last = kernel.lstm_layers([weights], inputs, given.hidden0[one], given.memory0[one], blocks=SMALL)
        assert torch.equal(last[0], state[0][one])
        assert torch.equal(last[1], state[1][one])
    assert torch.equal(inputs, outputs)


@interpreted
def test_one_launch_for_the_window_equals_one_for_each_step(monkeypatch: pytest.MonkeyPatch):
    given = make(4, 5, 16)  # one program, which never waits for another
    stepwise = results(kernel.lstm_layers, given, blocks=SMALL)
    for forward, backward in (([(-1, 4)], [(0, 4)]), ([(-1, 1), (1, 4)], [(3, 4), (0, 3)])):
        monkeypatch.setattr(kernel, "_forward_ranges", lambda _, ranges=forward: ranges)
        monkeypatch.setattr(kernel, "_backward_ranges", lambda _, ranges=backward: ranges)
        found = results(kernel.lstm_layers, given, blocks=SMALL)
        for name, expected in stepwise.items():  # sums over time may be added in another order
            torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-6)


@interpreted
def test_every_program_arrives_once_at_each_step(monkeypatch: pytest.MonkeyPatch):
    seen = []
    fresh = kernel.new_counters
    monkeypatch.setattr(kernel, "new_counters", lambda *args: seen.append(fresh(*args)) or seen[-1])
    results(kernel.lstm_layers, make(2, 20, 48), blocks=SMALL)
    (counters,) = seen
    groups_of_forward, groups_of_backward = [3, 3, 3] * 2, [3, 3, 0] * 2
    assert counters.tolist() == [[[*groups_of_forward, 0, 0, 0], [*groups_of_backward, 2, 2, 2]]]


@interpreted
def test_a_retained_graph_gives_the_same_gradients_again():
    given = make(3, 20, 32)
    inputs = given.inputs.requires_grad_()
    outputs, _ = kernel.lstm_layers(given.layers, inputs, given.hidden0, given.memory0, blocks=SMALL)
    wanted = [inputs]
    first, second = (torch.autograd.grad(outputs, wanted, given.gradient, retain_graph=True)[0] for _ in range(2))
    node = outputs.grad_fn
    assert node.counted
    assert (node.counters.max(), node.counters[-1]) == (2, 2), "the second run counted elsewhere"
    assert torch.equal(first, second)


@interpreted
def test_without_gradients_nothing_is_saved(monkeypatch: pytest.MonkeyPatch):
    given = make(3, 4, 16)
    saved = []
    run = kernel.run_forward
    monkeypatch.setattr(kernel, "run_forward", lambda *args, save: saved.append(save) or run(*args, save=save))
    given.inputs.requires_grad_()
    with torch.no_grad():
        outputs, state = kernel.lstm_layers(given.layers, given.inputs, given.hidden0, given.memory0, blocks=SMALL)
        expected, expected_state = reference.lstm_layers(given.layers, given.inputs, given.hidden0, given.memory0)
    assert saved == [False]
    for one, other in zip((outputs, *state), (expected, *expected_state), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@interpreted
def test_only_the_gradients_that_are_wanted():
    given = make(2, 3, 16)
    bias = given.layers[0].bias.requires_grad_()
    outputs, _ = kernel.lstm_layers(given.layers, given.inputs, given.hidden0, given.memory0, blocks=SMALL)
    (found,) = torch.autograd.grad(outputs, [bias], given.gradient, retain_graph=True)
    assert [given.inputs.grad, given.layers[0].ih.grad, given.layers[0].hh.grad] == [None] * 3
    torch.testing.assert_close(found, results(reference.lstm_layers, make(2, 3, 16))["bias 0"], rtol=1e-5, atol=1e-5)


@interpreted
def test_strided_inputs_and_states_of_another_type():
    given = make(2, 6, 32, torch.bfloat16)
    plain = results(kernel.lstm_layers, given._replace(hidden0=given.hidden0.bfloat16()), blocks=SMALL)
    layers = [weights._replace(hh=weights.hh.t().contiguous().t()) for weights in given.layers]
    gradient = given.gradient.transpose(1, 2).contiguous().transpose(1, 2)
    state = given.hidden0.bfloat16().double().mT.contiguous().mT, given.memory0.double()
    assert_equal(results(kernel.lstm_layers, Given(given.inputs, layers, *state, gradient), blocks=SMALL), plain)


@pytest.mark.parametrize("dropped", [False, True])
def test_the_loop_is_the_layer_of_the_model(dropped: bool):
    given = make(4, 3, 16, layers=2, dropped=dropped)
    layers = [
        DrawnLayer(DrawnMatrix(ih), DrawnMatrix(hh), bias, torch.zeros(64), update)
        for (ih, hh, bias), update in zip(given.layers, given.updates or [None, None], strict=True)
    ]
    expected, expected_state = run_stepwise("lstm", layers, given.inputs, (given.hidden0, given.memory0))
    outputs, state = lstm_layers(given.layers, given.inputs, given.hidden0, given.memory0, given.updates)
    for one, other in zip((outputs, *state), (expected, *expected_state), strict=True):
        torch.testing.assert_close(one, other)


def test_the_loop_takes_the_state_as_given():
    given = make(2, 3, 16)
    given.hidden0.requires_grad_()
    given.memory0.requires_grad_()
    assert results(reference.lstm_layers, given)["hidden"].shape == (1, 3, 16)
    assert given.hidden0.grad is None
    assert given.memory0.grad is None


def test_a_cpu_runs_the_loop():
    assert not supported(make(2, 3, 16).layers[0].hh, 3)


@pytest.mark.parametrize(
    ("batch", "width", "item", "rows", "units"),
    [
        (1, 16, 2, 8, 32),
        (20, 512, 2, 8, 32),
        (64, 512, 2, 8, 32),
        (128, 512, 2, 16, 32),
        (32, 1024, 2, 16, 16),
        (64, 1024, 2, 32, 16),
        (64, 640, 2, 32, 16),
        (64, 256, 4, 8, 32),
    ],
)
def test_blocks_for_an_h200(batch: int, width: int, item: int, rows: int, units: int):
    chosen = sizes.choose(batch, width, item, H200)
    assert chosen == Blocks(rows, units)
    assert chosen.programs(batch, width) <= 132


def test_what_does_not_fit_is_refused():
    assert sizes.choose(10_000, 512, 2, H200) is None
    assert sizes.choose(64, 1024, 4, H200) is None
    assert sizes.choose(64, 512, 2, Gpu(20, H200.shared)) is None
    assert sizes.choose(64, 512, 2, Gpu(132, 99 * 1024)) == Blocks(16, 16), "half the weights of (8, 32)"
    assert sizes.choose(64, 512, 2, Gpu(132, 48 * 1024)) is None


def test_two_runs_fit_side_by_side_where_they_can():
    with sizes.half_the_card():
        half = sizes.choose(64, 512, 2, H200)
        assert half is not None
        assert 2 * half.programs(64, 512) <= H200.processors
        assert sizes.choose(64, 1024, 2, H200) == Blocks(32, 16), "which needs all of it"
    assert sizes.choose(64, 512, 2, H200) == Blocks(8, 32)


@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [
        (torch.bfloat16, 1024, True),
        (torch.bfloat16, 1040, False),
        (torch.bfloat16, 24, False),
        (torch.float32, 256, True),
        (torch.float32, 272, False),
        (torch.float16, 64, False),
    ],
)
def test_widths_that_are_supported(dtype: torch.dtype, width: int, expected: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sizes, "kernels_for", lambda _: True)
    monkeypatch.setattr(sizes, "gpu_of", lambda _: H200)
    assert supported(torch.empty(4 * width, width, dtype=dtype), 64) == expected
