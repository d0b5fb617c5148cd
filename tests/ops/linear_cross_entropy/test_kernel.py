"""The kernel path against the reference; without a GPU in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varsmooth.ops.linear_cross_entropy import reference

pytest.importorskip("triton")

from varsmooth.ops.linear_cross_entropy import kernel, passes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FULL, HALF = torch.float32, torch.bfloat16
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    hidden: Tensor
    table: Tensor
    bias: Tensor | None
    targets: Tensor
    replaced: Tensor | None
    other: Tensor | None

    def to(self, dtype: torch.dtype) -> Case:
        """The same values, all in one dtype."""
        cast = {name: value.to(dtype) for name, value in vars(self).items() if value is not None and value.is_floating_point()}
        return replace(self, **cast)


def _case(shape: Shape, dtype: torch.dtype, *, bias: bool = True, replaced: str = "some", scale: float = 1.0) -> Case:
    rows, columns, width = shape
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    draw = lambda *size: torch.randn(*size, generator=generator).to(DEVICE)  # noqa: E731
    coin = {"none": torch.zeros(rows), "some": torch.arange(rows) % 2, "all": torch.ones(rows)}
    is_replaced = coin[replaced].bool().to(DEVICE) if replaced != "absent" else None
    return Case(
        hidden=(draw(rows, width) * scale).to(dtype),
        table=(draw(columns, width) / width**0.5).to(dtype),
        bias=draw(columns) if bias else None,
        targets=torch.randint(columns, (rows,), generator=generator).to(DEVICE),
        replaced=is_replaced,
        other=None if is_replaced is None else draw(rows) * scale,
    )


def _results(module: object, case: Case, names: tuple[str, ...] = ("hidden", "table", "bias", "other")) -> dict[str, Tensor]:
    """The loss, and the gradient of a sum with uneven weights in each of ``names``."""
    leaves = {name: getattr(case, name).detach().requires_grad_() for name in names if getattr(case, name) is not None}
    loss = module.linear_cross_entropy(**(vars(case) | leaves))  # type: ignore[attr-defined]
    weight = torch.linspace(-1.0, 2.0, len(loss), device=DEVICE) + 0.1
    gradients = torch.autograd.grad((loss * weight).sum(), list(leaves.values()))
    return {"loss": loss.detach()} | dict(zip(leaves, gradients, strict=True))


def _assert_near(results: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert results.keys() == expected.keys()
    for name, wanted in expected.items():
        got, wanted = results[name].double(), wanted.double()
        assert got.shape == wanted.shape, name
        assert got.isfinite().all(), name
        assert (got - wanted).norm() <= tolerance * wanted.norm() + 1e-6, f"{name}: {got} is not {wanted}"


def _assert_equal_to_reference(case: Case) -> None:
    results = _results(kernel, case)
    if case.hidden.dtype == FULL:
        torch.testing.assert_close(results, _results(reference, case), rtol=1e-5, atol=1e-6)
    else:
        _assert_near(results, _results(reference, case.to(torch.float64)), 1e-2)
    assert results["loss"].dtype == FULL
    for name in results.keys() - {"loss"}:
        assert results[name].dtype == getattr(case, name).dtype, name


@pytest.mark.parametrize("dtype", [FULL, HALF])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("replaced", ["absent", "none", "some", "all"])
@pytest.mark.parametrize("shape", [(1, 17, 3), (5, 1, 4), (7, 65, 1)])
def test_values_and_gradients_equal_the_reference(shape: Shape, replaced: str, bias: bool, dtype: torch.dtype) -> None:
    _assert_equal_to_reference(_case(shape, dtype, bias=bias, replaced=replaced))


@pytest.mark.parametrize("dtype", [FULL, HALF, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (34, 128, 8), (3, 2500, 16), (2, 4096, 5)])
def test_more_rows_and_columns_than_a_program_holds(shape: Shape, dtype: torch.dtype) -> None:
    _assert_equal_to_reference(_case(shape, dtype))


@pytest.mark.parametrize("dtype", [FULL, HALF])
@pytest.mark.parametrize("replaced", ["absent", "some", "all"])
def test_extreme_logits_stay_finite(replaced: str, dtype: torch.dtype) -> None:
    case = _case((6, 40, 4), dtype, replaced=replaced, scale=1e4)
    assert (case.hidden @ case.table.t()).abs().max() > 1e4
    _assert_equal_to_reference(case)


@pytest.mark.parametrize("level", [-1e4, 1e4])
def test_a_level_common_to_all_logits_costs_no_digits_of_the_probabilities(level: float) -> None:
    case = _case((4, 33, 2), FULL, replaced="none")
    assert case.bias is not None
    # Sixteenths: adding the level rounds nothing, neither in the logits nor in the bias.
    sixteenths = {name: (getattr(case, name) * 4).round() / 4 for name in ("hidden", "table", "bias")}
    near = replace(case, **sixteenths)
    far = replace(near, bias=sixteenths["bias"] + level)
    torch.testing.assert_close(_results(kernel, far), _results(kernel, near), rtol=1e-6, atol=1e-7)


def test_a_word_whose_bias_is_minus_infinity_is_never_predicted() -> None:
    case = _case((5, 20, 3), FULL)
    assert case.bias is not None
    others = torch.tensor([word for word in range(20) if word not in case.targets.tolist()], device=DEVICE)
    barred = replace(case, bias=case.bias.index_fill(0, others, float("-inf")))
    results = _results(kernel, barred)
    torch.testing.assert_close(results, _results(reference, barred), rtol=1e-5, atol=1e-6)
    assert not results["bias"][others].any()


def test_a_target_outside_the_table_gives_nan_and_leaves_other_rows_alone() -> None:
    case = _case((4, 20, 3), FULL, replaced="absent")
    wrong = replace(
        case, targets=case.targets.index_copy(0, torch.tensor([1, 3], device=DEVICE), case.targets.new_tensor([20, -1]))
    )
    loss = kernel.linear_cross_entropy(**vars(wrong))
    assert loss.isnan().tolist() == [False, True, False, True]
    assert torch.equal(loss[::2], kernel.linear_cross_entropy(**vars(case))[::2])


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_chunks_of_rows_equal_the_whole(dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case((rows, 17, 3), dtype)
    whole = _results(kernel, case)
    for limit in (1, 3 * 64 * dtype.itemsize):  # one row, three rows
        monkeypatch.setattr(kernel, "HALF_PRECISION_BYTES", limit)
        monkeypatch.setattr(kernel, "FULL_PRECISION_BYTES", limit)
        chunked = _results(kernel, case)
        assert torch.equal(chunked["loss"], whole["loss"])
        _assert_near(chunked, whole, 1e-6 if dtype == FULL else 1e-2)
        _assert_equal_to_reference(case)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "chunk"),
    [
        (2240, 10_000, HALF, 2240),
        (2240, 33_278, HALF, 2240),
        (2240, 267_735, HALF, 448),
        (1, 300_000_000, HALF, 1),
        (2240, 10_000, FULL, 1120),
        (101, 1000, FULL, 51),  # never the whole window
        (2240, 33_278, FULL, 448),
        (2, 1, FULL, 1),
        (1, 1, FULL, 1),
    ],
)
def test_how_many_rows_a_chunk_holds(rows: int, columns: int, dtype: torch.dtype, chunk: int) -> None:
    assert kernel.rows_per_chunk(rows, columns, dtype) == chunk
    limit = kernel.HALF_PRECISION_BYTES if dtype == HALF else kernel.FULL_PRECISION_BYTES
    assert chunk == 1 or chunk * passes.padded(columns) * dtype.itemsize <= limit


@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_no_more_logits_are_held_than_a_chunk(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case((7, 130, 3), dtype)
    limit = 2 * 192 * dtype.itemsize
    monkeypatch.setattr(kernel, "HALF_PRECISION_BYTES", limit)
    monkeypatch.setattr(kernel, "FULL_PRECISION_BYTES", limit)
    held: list[int] = []

    def spy(rows: int, columns: int, like: Tensor) -> Tensor:
        logits = passes.empty_logits(rows, columns, like)
        held.append(logits.untyped_storage().nbytes())
        return logits

    monkeypatch.setattr(kernel, "empty_logits", spy)
    _results(kernel, case)
    assert held == [limit, limit]


@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_a_second_backward_pass_is_refused(dtype: torch.dtype) -> None:
    case = _case((3, 9, 2), dtype)
    hidden = case.hidden.requires_grad_()
    loss = kernel.linear_cross_entropy(**vars(case)).sum()
    loss.backward(retain_graph=True)
    assert hidden.grad is not None
    first = hidden.grad.clone()
    with pytest.raises(RuntimeError, match="only once: its logits were overwritten"):
        loss.backward()
    assert torch.equal(hidden.grad, first)


def test_a_second_derivative_is_refused() -> None:
    case = _case((3, 9, 2), FULL)
    hidden = case.hidden.requires_grad_()
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernel.linear_cross_entropy(**vars(case)) @ weight, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", ["hidden", "table", "bias", "other"])
def test_each_gradient_alone(name: str) -> None:
    case = _case((5, 17, 3), FULL)
    torch.testing.assert_close(_results(kernel, case, (name,)), _results(reference, case, (name,)), rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_plain_sum_which_is_expanded() -> None:
    case = _case((5, 17, 3), HALF)
    hidden = case.hidden.requires_grad_()
    summed, weighted = (
        torch.autograd.grad(reduce(kernel.linear_cross_entropy(**vars(case))), hidden)[0]
        for reduce in (torch.sum, torch.ones(5, device=DEVICE).dot)
    )
    assert summed.abs().sum() > 0
    assert torch.equal(summed, weighted)


@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_inputs_need_not_be_contiguous(dtype: torch.dtype) -> None:
    case = _case((6, 17, 4), dtype)

    def spread(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor + 1], dim=-1).flatten(-2)[..., ::2]

    strided = {name: spread(getattr(case, name)) for name in ("hidden", "bias", "targets", "other")}
    strided["table"] = case.table.t().contiguous().t()
    strided["replaced"] = torch.stack([case.replaced, ~case.replaced], dim=-1).flatten()[::2]
    spread_case = Case(**strided)
    assert not any(tensor.is_contiguous() for tensor in strided.values())
    results, expected = _results(kernel, spread_case), _results(kernel, case)
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-6)


def test_other_may_be_in_half_precision_and_the_bias_too() -> None:
    case = _case((6, 17, 4), HALF)
    assert case.bias is not None
    assert case.other is not None
    _assert_equal_to_reference(replace(case, bias=case.bias.to(HALF), other=case.other.to(HALF)))


def test_rows_of_logits_begin_at_multiples_of_64() -> None:
    logits = passes.empty_logits(3, 33_278, torch.ones(1, dtype=HALF))
    assert logits.shape == (3, 33_278)
    assert logits.stride() == (33_280, 1)


def test_the_padding_of_the_rows_becomes_zero() -> None:
    rows = passes.Rows(torch.zeros(2, dtype=torch.int64, device=DEVICE), None, None, torch.zeros(3, 2, device=DEVICE))
    memory = torch.full((2, 128), float("nan"), device=DEVICE)
    logits = memory[:, :65].zero_()
    passes.write_losses(logits, None, rows, torch.zeros(2, device=DEVICE))
    passes.logits_to_gradient(logits, None, rows, torch.ones(2, device=DEVICE), None, sum_rows=False)
    torch.testing.assert_close(logits[:, 1:], torch.full((2, 64), 1 / 65, device=DEVICE))
    assert not memory[:, 65:].any()


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    case = _case((5, 17, 3), HALF)
    loss = kernel.linear_cross_entropy(**vars(case))
    assert loss.grad_fn is None
    torch.testing.assert_close(loss, _results(kernel, case)["loss"])


@pytest.mark.parametrize(("words", "rows"), [(5, 8), (61, 64), (64, 64), (63, 70), (1025, 1032)])
@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_rows_past_the_words_count_for_nothing(words, rows, dtype):
    """As if the table ended there, whatever its other rows hold; their gradient is 0."""
    case = _case((7, words, 16), dtype)
    padding = torch.randn(rows - words, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    padded = replace(case, table=torch.cat([case.table, padding]))

    class Padded:
        @staticmethod
        def linear_cross_entropy(**given: Any) -> Tensor:
            return kernel.linear_cross_entropy(**given, words=words)

    found, expected = _results(Padded, padded), _results(kernel, case)
    assert not found["table"][words:].any()
    found["table"] = found["table"][:words]
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=lambda text, at=name: f"{at}: {text}")
