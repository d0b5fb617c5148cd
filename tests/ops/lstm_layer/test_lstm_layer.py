"""The LSTM layer's kernels, interpreted, against the plain loop; and which sizes they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from varsmooth.model.recurrent_run import DrawnLayer, DrawnMatrix, run_stepwise
from varsmooth.ops.lstm_layer import blocks as sizes
from varsmooth.ops.lstm_layer import lstm_layer, reference, supported
from varsmooth.ops.lstm_layer.blocks import Blocks

kernel = pytest.importorskip("varsmooth.ops.lstm_layer.kernel")
interpreted = pytest.mark.skipif(not kernel.INTERPRETED, reason="compiled kernels are tested on their own")
SMALL = Blocks(16, 16, 2)
Pair: TypeAlias = tuple[Blocks, Blocks]
NAMES = ("hidden", "memory", "grad_projected", "grad_weight")


def inputs(steps: int, batch: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(steps + 10 * batch + 100 * width)
    shapes = (steps, batch, 4 * width), (4 * width, width), (batch, width), (batch, width), (steps, batch, width)
    projected, weight, hidden0, memory0, gradient = (torch.randn(shape, generator=generator) for shape in shapes)
    return projected.to(dtype), (weight / width**0.5).to(dtype), hidden0.tanh().to(dtype), memory0, gradient.to(dtype)


def results(
    layer: Callable[..., tuple[Tensor, Tensor]], given: tuple[Tensor, ...], **options: tuple[Blocks, Blocks]
) -> dict[str, Tensor]:
    projected, weight, hidden0, memory0, gradient = (tensor.clone() for tensor in given)
    projected.requires_grad_()
    weight.requires_grad_()
    hidden, memory = layer(projected, weight, hidden0, memory0, **options)
    assert hidden.dtype == projected.dtype
    assert memory.dtype in (torch.float32, torch.float64)
    assert not memory.requires_grad
    hidden.backward(gradient)
    return dict(zip(NAMES, (hidden.detach(), memory, projected.grad, weight.grad), strict=True))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@interpreted
@pytest.mark.parametrize(
    ("steps", "batch", "width", "blocks"),
    [
        (1, 1, 16, SMALL),
        (3, 1, 48, SMALL),  # three unit blocks, and a contraction that is no power of two
        (2, 20, 16, SMALL),  # two groups of sequences, the second with four
        (2, 9, 48, Blocks(8, 16, 1)),
        (2, 35, 48, Blocks(32, 32, 4)),  # the second unit block is half empty
        (2, 3, 256, Blocks(8, 128, 8)),
        (2, 5, 128, Blocks(8, 64, 4)),
    ],
)
def test_interpreted_kernels_equal_the_loop_in_fp32(steps: int, batch: int, width: int, blocks: Blocks):
    given = inputs(steps, batch, width)
    found = results(kernel.lstm_layer, given, blocks=(blocks, blocks))
    for name, expected in results(reference.lstm_layer, given).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@interpreted
@pytest.mark.parametrize(("steps", "batch", "width"), [(1, 1, 16), (3, 20, 32), (2, 5, 48)])
def test_interpreted_kernels_are_near_the_exact_loop_in_bf16(steps: int, batch: int, width: int):
    given = inputs(steps, batch, width, torch.bfloat16)
    found = results(kernel.lstm_layer, given, blocks=(SMALL, SMALL))
    exact = results(reference.lstm_layer, tuple(tensor.double() for tensor in given))
    assert found["hidden"].dtype == found["grad_weight"].dtype == torch.bfloat16
    assert {name: relative(found[name], exact[name]) < 1e-2 for name in NAMES} == dict.fromkeys(NAMES, True)


@interpreted
def test_one_launch_for_the_window_equals_one_for_each_step(monkeypatch: pytest.MonkeyPatch):
    given = inputs(4, 5, 16)  # one program, which never waits for another
    stepwise = results(kernel.lstm_layer, given, blocks=(SMALL, SMALL))
    monkeypatch.setattr(kernel, "_ranges", lambda steps: [(0, steps)])
    whole = results(kernel.lstm_layer, given, blocks=(SMALL, SMALL))
    monkeypatch.setattr(kernel, "_ranges", lambda steps: [(0, 1), (1, steps)])
    uneven = results(kernel.lstm_layer, given, blocks=(SMALL, SMALL))
    for name in NAMES:
        assert torch.equal(stepwise[name], whole[name]), name
        assert torch.equal(stepwise[name], uneven[name]), name


@interpreted
def test_every_program_arrives_once_at_each_step(monkeypatch: pytest.MonkeyPatch):
    seen = []
    make = kernel._counters
    monkeypatch.setattr(kernel, "_counters", lambda *args: seen.append(make(*args)) or seen[-1])
    results(kernel.lstm_layer, inputs(2, 20, 48), blocks=(SMALL, SMALL))
    assert [counters.tolist() for counters in seen] == [[[3] * 2] * 2] * 2


@interpreted
def test_without_gradients_nothing_is_saved(monkeypatch: pytest.MonkeyPatch):
    projected, weight, hidden0, memory0, _ = inputs(3, 4, 16)
    saved = []
    run = kernel.run_forward
    monkeypatch.setattr(kernel, "run_forward", lambda *args, save: saved.append(save) or run(*args, save=save))
    with torch.no_grad():
        hidden, memory = kernel.lstm_layer(projected.requires_grad_(), weight, hidden0, memory0, (SMALL, SMALL))
    expected, expected_memory = reference.lstm_layer(projected, weight, hidden0, memory0)
    assert saved == [False]
    torch.testing.assert_close(hidden, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(memory, expected_memory, rtol=1e-5, atol=1e-5)


@interpreted
def test_strided_inputs_and_a_state_of_another_type():
    projected, weight, hidden0, memory0, gradient = inputs(2, 6, 32, torch.bfloat16)
    crossed = (projected.transpose(0, 1).contiguous().transpose(0, 1), weight.t().contiguous().t())
    plain = results(kernel.lstm_layer, (projected, weight, hidden0, memory0, gradient), blocks=(SMALL, SMALL))
    other = (*crossed, hidden0.float(), memory0, gradient.transpose(1, 2).contiguous().transpose(1, 2))
    found = results(kernel.lstm_layer, other, blocks=(SMALL, SMALL))
    for name in NAMES:
        assert torch.equal(found[name], plain[name]), name


def test_the_loop_is_the_layer_of_the_model():
    projected, weight, hidden0, memory0, _ = inputs(4, 3, 16)
    zero, same = torch.zeros(64), DrawnMatrix(torch.eye(64))
    layer = DrawnLayer(same, DrawnMatrix(weight), zero, zero)
    expected, (_, expected_memory) = run_stepwise("lstm", [layer], projected, (hidden0[None], memory0[None]))
    hidden, memory = lstm_layer(projected, weight, hidden0, memory0)
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(memory, expected_memory[0])


def test_the_loop_takes_the_state_as_given():
    projected, weight, hidden0, memory0, gradient = inputs(2, 3, 16)
    hidden0.requires_grad_()
    memory0.requires_grad_()
    hidden, memory = reference.lstm_layer(projected.requires_grad_(), weight, hidden0, memory0)
    hidden.backward(gradient)
    assert hidden0.grad is None
    assert memory0.grad is None
    assert not memory.requires_grad


def test_a_cpu_runs_the_loop():
    projected, weight, *_ = inputs(2, 3, 16)
    assert not supported(projected, weight)


@pytest.mark.parametrize(
    ("batch", "width", "item", "fits"),
    [(1, 16, 2, True), (64, 512, 2, True), (100, 512, 2, True), (64, 1024, 2, True), (64, 512, 4, True), (64, 1024, 4, False)],
)
def test_blocks_fit_on_a_gpu_of_132_processors(batch: int, width: int, item: int, fits: bool):
    chosen = sizes.choose(batch, width, item, 132)
    assert (chosen is not None) == fits
    assert all(blocks.programs(batch, width) <= 132 for blocks in chosen or ())


def test_more_sequences_than_fit_are_refused():
    assert sizes.choose(10_000, 512, 2, 132) is None
    assert sizes.choose(64, 512, 2, 20) is None
