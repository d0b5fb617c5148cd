"""The compiled kernels at the sizes of real models, in a graph, and beyond 2**31 elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from varsmooth.ops.backend import reference_only
from varsmooth.ops.descend import Descent, bias_correction, descend

pytestmark = pytest.mark.gpu


def a_model(words: int, width: int, *, averaged: bool) -> Descent:
    generator = torch.Generator("cuda").manual_seed(1)
    shapes = [(words, width), (words,), *[(4 * width, width)] * 4, *[(4 * width,)] * 2]
    parameters = [0.05 * torch.randn(shape, device="cuda", generator=generator) for shape in shapes]
    rows = 0.5 + torch.rand(words, device="cuda", generator=generator)
    return Descent.start(parameters, [rows, *[None] * 7], l2=1e-2, clip=10.0, averaged=averaged)


def some_gradients(descent: Descent, step: int, scale: float) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(100 + step)
    return [scale * torch.randn(p.shape, device="cuda", generator=generator) for p in descent.parameters]


def scalars(step: int) -> list[Tensor]:
    return [torch.tensor(value, device="cuda") for value in (0.002, bias_correction(step), 0.3)]


def distance(found: list[Tensor], wanted: list[Tensor], start: list[Tensor]) -> float:
    """Return how far ``found`` is from ``wanted``, as a share of the way from ``start``; one element left out is above 1e-4.

    By the norm: where gradient and penalty cancel to less than Adam's epsilon, single elements keep few true digits.
    """
    apart = torch.stack(torch._foreach_norm(torch._foreach_sub(found, wanted))).norm()
    return float(apart / torch.stack(torch._foreach_norm(torch._foreach_sub(wanted, start))).norm())


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("words", "width"), [(10_000, 512), (33_278, 512), (10_001, 1023)])
@pytest.mark.parametrize("scale", [1e-3, 1e-1], ids=["not clipped", "clipped"])
def test_steps_of_a_real_model_are_those_of_the_reference_without_waiting(words, width, scale):
    found, wanted, start = (a_model(words, width, averaged=True) for _ in range(3))
    for step in (1, 2, 3):
        gradients, given = some_gradients(found, step, scale), scalars(step)
        with no_waiting():
            results = descend(found, gradients, *given)
            with reference_only():
                expected = descend(wanted, gradients, *given)
        torch.testing.assert_close(results, expected, rtol=1e-5, atol=0.0)
    assert distance(found.parameters, wanted.parameters, start.parameters) < 3e-5
    # torch's fused Adam rounds 1 - beta2 to single precision on a GPU, which is 1.3e-5 off.
    assert distance(found.squares, wanted.squares, start.squares) < 3e-5
    assert distance(found.averages, wanted.averages, start.averages) < 3e-5


def test_a_graph_replays_with_other_gradients_rates_and_corrections():
    found, wanted = (a_model(1_000, 64, averaged=True) for _ in range(2))
    gradients, given = some_gradients(found, 0, 0.1), scalars(1)
    warm = a_model(1_000, 64, averaged=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        descend(warm, gradients, *given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = descend(found, gradients, *given)
    for step in (1, 2, 3):
        fresh, values = some_gradients(found, step, 0.1), scalars(step)
        values[0] /= step
        torch._foreach_copy_([*gradients, *given], [*fresh, *values])
        graph.replay()
        expected = descend(wanted, fresh, *values)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found.parameters, wanted.parameters, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found.averages, wanted.averages, strict=True))


def test_a_table_of_more_than_2_to_the_31_elements_is_updated_to_its_end():
    rows, width = 2**22 + 3, 513
    if torch.cuda.mem_get_info()[0] < 32 * 2**30:
        pytest.skip("needs 32 GiB of free memory")
    parameter = torch.ones(rows, width, device="cuda")
    gradient = torch.full((rows, width), 0.5, device="cuda", dtype=torch.bfloat16)
    c = torch.ones(rows, device="cuda")
    c[-1], c[0] = 3, 2
    descent = Descent([parameter], [torch.zeros_like(parameter)], [c], [], 0.25, float("inf"))
    norm, kl = descend(descent, [gradient], *scalars(1))
    count = rows * width
    assert float(kl) == pytest.approx(0.5 * (count + 3 * width), rel=1e-6)
    squared = 0.75**2 * (count - 2 * width) + (1.25**2 + 1.0) * width
    assert float(norm) == pytest.approx(squared**0.5, rel=1e-6)
    for row, full in ((0, 1.0), (1, 0.75), (rows // 2, 0.75), (rows - 2, 0.75), (rows - 1, 1.25)):
        torch.testing.assert_close(descent.squares[0][row], torch.full((width,), 0.001 * full**2, device="cuda"))
        torch.testing.assert_close(parameter[row], torch.full((width,), 1 - 0.002, device="cuda"))
