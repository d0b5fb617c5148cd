"""The kernels against the reference: in Triton's interpreter without a GPU, compiled with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth.ops import descend as operation
from varsmooth.ops.backend import reference_only
from varsmooth.ops.descend import Descent, bias_correction, descend, reference

pytest.importorskip("triton")
from varsmooth.ops.descend import kernel

# Sizes of one element, below, at and above a program's share, rows that straddle two programs, a width of 1.
SHAPES = [(317, 13), (1,), (5,), (1024,), (4097,), (1, 1), (40, 1), (3, 2, 2)]
WEIGHTED = (0, 5, 6, 7)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("with a GPU kernels are compiled, and run there")
    return str(request.param)


def a_descent(device: str, *, l2: float, clip: float, averaged: bool, weighted: tuple[int, ...] = WEIGHTED) -> Descent:
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]
    drawn = [(torch.rand(shape[0], generator=generator) * 2).to(device) for shape in SHAPES]
    weights = [row if i in weighted else None for i, row in enumerate(drawn)]
    return Descent.start(parameters, weights, l2=l2, clip=clip, averaged=averaged)


def some_gradients(device: str, step: int, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator).to(device, dtypes[i % len(dtypes)]) for i, shape in enumerate(SHAPES)]


def scalars(device: str, step: int, lr: float = 0.01, average_step: float = 0.3) -> list[Tensor]:
    return [torch.tensor(value, device=device) for value in (lr, bias_correction(step), average_step)]


def state(descent: Descent) -> list[Tensor]:
    return [tensor.clone() for tensor in (*descent.parameters, *descent.squares, *descent.averages)]


def assert_alike(found: Descent, wanted: Descent) -> None:
    # torch's fused Adam, which the reference uses, rounds 1 - beta2 to single precision on a GPU: 1.3e-5 off.
    rtol = 3e-5 if found.parameters[0].is_cuda else 1e-5
    for name, atol in {"parameters": 1e-6, "squares": 1e-11, "averages": 1e-6}.items():
        for i, (left, right) in enumerate(zip(getattr(found, name), getattr(wanted, name), strict=True)):
            torch.testing.assert_close(left, right, rtol=rtol, atol=atol, msg=lambda text, at=f"{name}[{i}]": f"{at}: {text}")


@pytest.mark.parametrize(
    ("l2", "clip", "averaged"), [(0.0, 2.0, False), (0.05, 2.0, True), (0.05, 1e4, False), (0.0, 1e4, True)]
)
def test_several_steps_are_those_of_the_reference(device, l2, clip, averaged):
    settings = {"l2": l2, "clip": clip, "averaged": averaged}
    found, wanted = a_descent(device, **settings), a_descent(device, **settings)
    for step in range(1, 4):
        gradients = some_gradients(device, step)
        kept = [gradient.clone() for gradient in gradients]
        given = scalars(device, step, average_step=0.9 / step)
        torch.testing.assert_close(
            kernel.descend(found, gradients, *given), reference.descend(wanted, gradients, *given), rtol=1e-5, atol=0.0
        )
        assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))
    assert_alike(found, wanted)
    assert all(tensor.isfinite().all() for tensor in state(found))


@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.bfloat16, torch.float32)], ids=["bfloat16", "mixed"])
def test_gradients_may_be_bfloat16(device, dtypes):
    settings: dict[str, Any] = {"l2": 0.05, "clip": 30.0, "averaged": True}
    found, wanted = a_descent(device, **settings), a_descent(device, **settings)
    for step in (1, 2):
        gradients = some_gradients(device, step, dtypes)
        norm, _ = kernel.descend(found, gradients, *scalars(device, step))
        reference.descend(wanted, [gradient.float() for gradient in gradients], *scalars(device, step))
        assert norm > 30
    assert_alike(found, wanted)


def test_row_weights_of_one_are_as_none_and_a_second_run_has_the_same_bits_as_the_first(device):
    runs = []
    for weighted in (range(len(SHAPES)), range(len(SHAPES)), ()):
        descent = a_descent(device, l2=0.3, clip=5.0, averaged=True, weighted=tuple(weighted))
        for weights in descent.row_weights:
            if weights is not None:
                weights.fill_(1)
        results = [kernel.descend(descent, some_gradients(device, step), *scalars(device, step)) for step in (1, 2)]
        runs.append([*state(descent), *(value for pair in results for value in pair)])
    first, second, unweighted = runs
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for left, right in zip(first, unweighted, strict=True):
        # A compiler may join a product and a sum where there are weights, and round once instead of twice.
        torch.testing.assert_close(left, right, rtol=0 if device == "cpu" else 1e-6, atol=0 if device == "cpu" else 1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 4], ids=["first program", "last element of its tensor"])
def test_a_gradient_that_is_not_finite_changes_nothing(device, bad, where):
    descent = a_descent(device, l2=0.05, clip=2.0, averaged=True)
    gradients = some_gradients(device, 1)
    gradients[where].view(-1)[-1 if where else 0] = bad
    before = state(descent)
    norm, kl = kernel.descend(descent, gradients, *scalars(device, 1))
    assert not norm.isfinite()
    assert kl.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(state(descent), before, strict=True))


def test_an_average_step_of_1_ends_exactly_at_the_weights(device):
    descent = a_descent(device, l2=0.05, clip=2.0, averaged=True)
    for average in descent.averages:
        average.fill_(1e4)  # so far away that the way there, once rounded, misses
    kernel.descend(descent, some_gradients(device, 1), *scalars(device, 1, average_step=1.0))
    assert all(torch.equal(a, b) for a, b in zip(descent.averages, descent.parameters, strict=True))


def test_nothing_is_written_past_a_tensor(device):
    room = [torch.full((count + 64,), 7.0, device=device) for count in (5, 1023, 4097)]
    inner = [memory[:-64] for memory in room]
    descent = Descent(inner, [torch.zeros_like(view) for view in inner], [None] * 3, [], 0.1, 1.0)
    kernel.descend(descent, [torch.ones_like(view) for view in inner], *scalars(device, 1))
    for memory in room:
        assert (memory[:-64] < 7).all()
        assert (memory[-64:] == 7).all()


def test_results_of_one_step_outlive_the_next(device):
    descent = a_descent(device, l2=0.05, clip=2.0, averaged=False)
    norm, kl = kernel.descend(descent, some_gradients(device, 1), *scalars(device, 1))
    kept = (norm.clone(), kl.clone())
    kernel.descend(descent, some_gradients(device, 2), *scalars(device, 2))
    assert (norm, kl) == kept


def test_kernels_run_where_the_backend_says_so_and_only_there(monkeypatch, device):
    called = []

    def noted(*given: Any) -> tuple[Tensor, Tensor]:
        called.append(given)
        return reference.descend(*given)

    monkeypatch.setattr(kernel, "descend", noted)
    descent = a_descent(device, l2=0.05, clip=2.0, averaged=False)
    with reference_only():
        descend(descent, some_gradients(device, 1), *scalars(device, 1))
    assert not called
    monkeypatch.setattr(operation, "kernels_for", lambda tensor: tensor is descent.parameters[0])
    descend(descent, some_gradients(device, 2), *scalars(device, 2))
    assert len(called) == 1


def test_strided_gradients_are_read_by_their_places(monkeypatch, device):
    monkeypatch.setattr(operation, "kernels_for", lambda _: True)
    found, wanted = (a_descent(device, l2=0.05, clip=2.0, averaged=False) for _ in range(2))
    gradients = some_gradients(device, 1)
    descend(found, [g.mT.contiguous().mT if g.dim() == 2 else g for g in gradients], *scalars(device, 1))
    reference.descend(wanted, gradients, *scalars(device, 1))
    assert_alike(found, wanted)
