"""The reference against torch's own penalty, clipping and Adam, and what any form of the operation promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from varsmooth.ops.descend import Descent, bias_correction, descend

SHAPES = [(7, 5), (1,), (3, 4), (6,), (2, 3, 2), (1, 1)]
WEIGHTED = (0, 4, 5)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_descent(*, l2: float = 0.02, clip: float = 1.0, averaged: bool = True) -> Descent:
    generator = seeded(1)
    parameters = [torch.randn(shape, generator=generator) for shape in SHAPES]
    weights = [torch.rand(shape[0], generator=generator) * 2 if i in WEIGHTED else None for i, shape in enumerate(SHAPES)]
    return Descent.start(parameters, weights, l2=l2, clip=clip, averaged=averaged)


def some_gradients(step: int) -> list[Tensor]:
    generator = seeded(100 + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def take(descent: Descent, gradients: list[Tensor], step: int, lr: float = 0.01, average_step: float = 0.3) -> list[float]:
    scalars = [torch.tensor(value) for value in (lr, bias_correction(step), average_step)]
    return [float(value) for value in descend(descent, gradients, *scalars)]


def state(descent: Descent) -> list[Tensor]:
    return [tensor.clone() for tensor in (*descent.parameters, *descent.squares, *descent.averages)]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("clip", [0.5, 7.0, 1e4], ids=["clipped", "sometimes", "not clipped"])
@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_twenty_steps_are_those_of_torch_in_double_precision(l2, clip):
    descent = a_descent(l2=l2, clip=clip)
    weights = [torch.nn.Parameter(parameter.double()) for parameter in descent.parameters]
    averages = [average.double() for average in descent.averages]
    optimiser = torch.optim.Adam(weights, lr=1.0, betas=(0.0, 0.999), eps=1e-8)
    for step in range(1, 21):
        lr, average_step = 0.05 / step, 1 - min(0.99, step / (9 + step))
        gradients = some_gradients(step)
        halves = [
            (w.square() if c is None else c.double().view(-1, *[1] * (w.dim() - 1)) * w.square()).sum()
            for w, c in zip(weights, descent.row_weights, strict=True)
        ]
        kl = 0.5 * torch.stack(halves).sum()
        nll = torch.stack([(w * g.double()).sum() for w, g in zip(weights, gradients, strict=True)]).sum()
        optimiser.zero_grad()
        torch.autograd.backward(nll + l2 * kl)
        norm = torch.nn.utils.clip_grad_norm_(weights, clip)
        optimiser.param_groups[0]["lr"] = lr
        optimiser.step()
        torch._foreach_lerp_(averages, [w.detach() for w in weights], average_step)

        assert take(descent, gradients, step, lr, average_step) == pytest.approx([norm.item(), kl.item()], rel=1e-6)
        for i, weight in enumerate(weights):
            moment = optimiser.state[weight]["exp_avg_sq"]
            torch.testing.assert_close(descent.parameters[i].double(), weight.detach(), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(descent.squares[i].double(), moment, rtol=2e-6, atol=1e-10)
            torch.testing.assert_close(descent.averages[i].double(), averages[i], rtol=1e-6, atol=1e-6)


def test_late_corrections_down_to_exactly_1_are_those_of_adam():
    for step in (1, 2, 500, 20_000, 10**6):
        descent = a_descent(l2=0.0, clip=1e9)
        before, gradients = state(descent), some_gradients(step)
        take(descent, gradients, step)
        for i, gradient in enumerate(gradients):
            square = 0.001 * gradient.double().square()
            moved = 0.01 * gradient.double() / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
            torch.testing.assert_close(descent.parameters[i], (before[i].double() - moved).float(), rtol=1e-5, atol=1e-6)
    assert torch.tensor(bias_correction(20_000)) == 1


def test_gradients_are_left_as_they_are():
    gradients = some_gradients(1)
    kept = [gradient.clone() for gradient in gradients]
    take(a_descent(clip=0.1), gradients, 1)
    assert same(gradients, kept)


def test_parameters_that_require_gradients_are_stepped_in_place():
    plain, descent = a_descent(), a_descent()
    learned = replace(descent, parameters=[torch.nn.Parameter(parameter) for parameter in descent.parameters])
    take(plain, some_gradients(1), 1)
    take(learned, some_gradients(1), 1)
    assert same(state(plain), state(learned))
    assert not any(tensor.requires_grad for tensor in (*learned.squares, *learned.averages, *learned.scratch))


def test_bfloat16_and_strided_gradients_count_by_their_values():
    rounded = [gradient.bfloat16() for gradient in some_gradients(1)]
    single, half, strided = a_descent(), a_descent(), a_descent()
    found = [
        take(single, [gradient.float() for gradient in rounded], 1),
        take(half, [g if i % 2 else g.float() for i, g in enumerate(rounded)], 1),
        take(strided, [g.float().mT.contiguous().mT if g.dim() == 2 else g.float() for g in rounded], 1),
    ]
    assert found[0] == found[1] == found[2]
    assert same(state(single), state(half))
    assert same(state(single), state(strided))


def test_row_weights_of_one_are_the_same_bits_as_none():
    descent = a_descent(l2=0.3)
    ones = replace(descent, row_weights=[torch.ones(shape[0]) for shape in SHAPES])
    nones = replace(a_descent(l2=0.3), row_weights=[None] * len(SHAPES))
    for step in range(1, 4):
        take(ones, some_gradients(step), step)
        take(nones, some_gradients(step), step)
    assert same(state(ones), state(nones))


def test_the_same_steps_give_the_same_bits_also_when_resumed_half_way():
    whole = a_descent()
    for step in range(1, 7):
        take(whole, some_gradients(step), step)
    begun = a_descent()
    for step in range(1, 4):
        take(begun, some_gradients(step), step)
    resumed = a_descent()
    for tensor, saved in zip((*resumed.parameters, *resumed.squares, *resumed.averages), state(begun), strict=True):
        tensor.copy_(saved)
    for step in range(4, 7):
        take(resumed, some_gradients(step), step)
    assert same(state(whole), state(resumed))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    descent, never = a_descent(), a_descent()
    gradients = some_gradients(2)
    gradients[3][2] = bad
    for one in (descent, never):
        take(one, some_gradients(1), 1)
    before = state(descent)
    norm, kl = take(descent, gradients, 2)
    assert not torch.tensor(norm).isfinite()
    assert torch.tensor(kl).isfinite()
    assert same(state(descent), before)
    for one in (descent, never):
        take(one, some_gradients(3), 3)
    assert same(state(descent), state(never))


def test_a_weight_that_is_not_finite_reaches_neither_moments_nor_average():
    descent = a_descent()
    descent.parameters[2][1, 1] = torch.inf
    before = state(descent)
    assert take(descent, some_gradients(1), 1) == [torch.inf, torch.inf]
    assert same(state(descent), before)


def test_without_averages_none_is_kept():
    with_averages, without = a_descent(), a_descent(averaged=False)
    for descent in (with_averages, without):
        take(descent, some_gradients(1), 1)
    assert without.averages == []
    assert same(with_averages.parameters, without.parameters)


def test_what_does_not_fit_is_refused_by_name():
    descent = a_descent()
    with pytest.raises(ValueError, match="one second moment"):
        replace(descent, squares=descent.squares[1:])
    with pytest.raises(ValueError, match="one average"):
        replace(descent, averages=descent.averages[1:])
    with pytest.raises(ValueError, match="one second moment"):
        Descent.start([], [], l2=0.0, clip=1.0)
    with pytest.raises(ValueError, match="parameter 0"):
        replace(descent, parameters=[descent.parameters[0].double(), *descent.parameters[1:]])
    with pytest.raises(ValueError, match="parameter 2"):
        replace(descent, squares=[*descent.squares[:2], torch.zeros(4, 3).T, *descent.squares[3:]])
    with pytest.raises(ValueError, match="row weights 0"):
        replace(descent, row_weights=[torch.ones(5), *descent.row_weights[1:]])
    with pytest.raises(ValueError, match="number, order and shape"):
        take(descent, some_gradients(1)[:-1], 1)
    with pytest.raises(ValueError, match="number, order and shape"):
        take(descent, some_gradients(1)[::-1], 1)
