"""At the sizes of a training step, on a GPU: against double precision, in a graph, and within its memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from varsmooth.ops.linear_cross_entropy import linear_cross_entropy, reference

pytestmark = pytest.mark.gpu
ROWS, WIDTH = 2240, 512
NAMES = ("hidden", "table", "bias", "other")


def _inputs(columns: int, dtype: torch.dtype = torch.bfloat16, rows: int = ROWS, width: int = WIDTH) -> dict[str, Tensor]:
    generator = torch.Generator("cuda").manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, device="cuda", generator=generator)  # noqa: E731
    inputs = {
        "hidden": normal(rows, width).to(dtype),
        "table": (normal(columns, width) * 2 / width**0.5).to(dtype),
        "bias": normal(columns),
        "targets": torch.randint(columns, (rows,), device="cuda", generator=generator),
        "replaced": torch.rand(rows, device="cuda", generator=generator) < 0.3,
        "other": normal(rows),
    }
    for name in NAMES:
        inputs[name].requires_grad_()
    return inputs


def _with_gradients(inputs: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    loss = linear_cross_entropy(**inputs)
    gradients = torch.autograd.grad((loss * weight).sum(), [inputs[name] for name in NAMES])
    return {"loss": loss.detach()} | dict(zip(NAMES, gradients, strict=True))


def _in_double(inputs: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """The reference on the same values with logits in double precision, some rows at a time."""
    double = {name: inputs[name].detach().double().requires_grad_() for name in NAMES}
    losses = []
    for first in range(0, len(inputs["hidden"]), 560):
        part = slice(first, first + 560)
        rows = {name: (double.get(name, inputs[name]))[part] for name in ("hidden", "targets", "replaced", "other")}
        loss = reference.linear_cross_entropy(table=double["table"], bias=double["bias"], **rows)
        (loss * weight[part]).sum().backward()
        losses.append(loss.detach())
    gradients = {name: double[name].grad for name in NAMES}
    return {"loss": torch.cat(losses)} | {name: grad for name, grad in gradients.items() if grad is not None}


def _relative_error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.fixture
def _no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("columns", "dtype", "tolerance"),
    [
        (10_000, torch.bfloat16, 1e-2),
        (33_278, torch.bfloat16, 1e-2),
        (267_735, torch.bfloat16, 1e-2),
        (33_278, torch.float32, 1e-5),
    ],
)
def test_values_and_gradients_against_double_precision(columns: int, dtype: torch.dtype, tolerance: float) -> None:
    inputs = _inputs(columns, dtype)
    weight = torch.linspace(0.5, 1.5, ROWS, device="cuda")
    results, expected = _with_gradients(inputs, weight), _in_double(inputs, weight)
    assert results.keys() == expected.keys()
    for name, wanted in expected.items():
        got = results[name]
        assert got.isfinite().all(), name
        error = _relative_error(got, wanted)
        assert error < tolerance, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("columns", [10_000, 33_278])
def test_two_runs_agree_to_the_bit(columns: int) -> None:
    inputs, weight = _inputs(columns), torch.linspace(0.5, 1.5, ROWS, device="cuda")
    first, second = _with_gradients(inputs, weight), _with_gradients(inputs, weight)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_peak_memory_is_that_of_the_logits_in_half_precision() -> None:
    inputs = _inputs(10_000)
    _with_gradients(inputs, torch.ones(ROWS, device="cuda"))  # the matrix library takes its workspace once
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(**inputs).sum().backward()
    gradients = sum(tensor.grad.nbytes for tensor in inputs.values() if tensor.grad is not None)
    extra = torch.cuda.max_memory_allocated() - before - gradients
    # The logits take 45 MB; a copy of them, or of their gradient, would not fit.
    assert extra < 64e6, f"{extra / 1e6:.1f} MB"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)])
def test_a_captured_graph_gives_what_the_eager_call_gives(dtype: torch.dtype, tolerance: float) -> None:
    inputs, weight = _inputs(10_000, dtype, rows=70), torch.linspace(0.5, 1.5, 70, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = _with_gradients(inputs, weight)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = _with_gradients(inputs, weight)
    for value in captured.values():
        value.fill_(float("nan"))
    graph.replay()
    for name, value in expected.items():
        assert _relative_error(captured[name], value) < tolerance, name


@pytest.mark.usefixtures("_no_synchronisation")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_host_never_waits(dtype: torch.dtype) -> None:
    _with_gradients(_inputs(10_000, dtype, rows=70), torch.ones(70, device="cuda"))


@pytest.mark.parametrize(("rows", "columns", "width"), [(1, 1, 1), (1, 33_278, 512), (3, 17, 3), (65, 1025, 40)])
def test_odd_shapes_in_single_precision(rows: int, columns: int, width: int) -> None:
    inputs, weight = _inputs(columns, torch.float32, rows, width), torch.linspace(0.5, 1.5, rows, device="cuda")
    results, expected = _with_gradients(inputs, weight), _in_double(inputs, weight)
    for name, wanted in expected.items():
        torch.testing.assert_close(results[name].double(), wanted.double(), rtol=1e-4, atol=1e-5)


def test_autocast_takes_the_products_in_half_precision() -> None:
    inputs, weight = _inputs(10_000, torch.float32, rows=70), torch.ones(70, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        results = _with_gradients(inputs, weight)
    expected = _in_double(inputs, weight)
    for name, wanted in expected.items():
        error = _relative_error(results[name], wanted)
        assert 1e-5 < error < 2e-2 or name == "other", f"{name}: relative error {error:.2e}"
        assert results[name].dtype == torch.float32
