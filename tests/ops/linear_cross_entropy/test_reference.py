"""The definition of the loss, against its formula, and what the public function accepts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.ops import linear_cross_entropy as package
from varsmooth.ops.linear_cross_entropy import linear_cross_entropy, reference


def _inputs(rows: int = 6, columns: int = 5, width: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "hidden": torch.randn(rows, width, generator=generator),
        "table": torch.randn(columns, width, generator=generator),
        "bias": torch.randn(columns, generator=generator),
        "targets": torch.randint(columns, (rows,), generator=generator),
        "replaced": torch.arange(rows) % 2 == 0,
        "other": torch.randn(rows, generator=generator),
    }


def _by_formula(hidden: Tensor, table: Tensor, bias: Tensor, other: Tensor, targets: Tensor, replaced: Tensor) -> Tensor:
    """One row at a time, one logit at a time, in the dtype of the inputs."""
    losses = []
    for row, (target, is_replaced) in enumerate(zip(targets.tolist(), replaced.tolist(), strict=True)):
        logits = [hidden[row] @ vector for vector in table]
        if is_replaced:
            logits[target] = other[row]
        with_bias = torch.stack(logits) + bias
        losses.append(with_bias.exp().sum().log() - with_bias[target])
    return torch.stack(losses)


def test_the_reference_and_its_gradients_follow_the_formula() -> None:
    inputs = _inputs()
    names = ("hidden", "table", "bias", "other")
    weight = torch.linspace(-1.0, 2.0, 6)

    given = {name: inputs[name].clone().requires_grad_() for name in names}
    loss = reference.linear_cross_entropy(**(inputs | given))
    gradients = torch.autograd.grad((loss * weight).sum(), [given[name] for name in names])

    exact = {name: inputs[name].double().requires_grad_() for name in names}
    expected = _by_formula(*exact.values(), inputs["targets"], inputs["replaced"])
    expected_gradients = torch.autograd.grad((expected * weight).sum(), list(exact.values()))

    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    for name, gradient, expected_gradient in zip(names, gradients, expected_gradients, strict=True):
        torch.testing.assert_close(
            gradient.double(), expected_gradient, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_the_reference_passes_a_check_by_finite_differences() -> None:
    inputs = _inputs()
    double = [inputs[name].double().requires_grad_() for name in ("hidden", "table", "bias", "other")]

    def loss(hidden: Tensor, table: Tensor, bias: Tensor, other: Tensor) -> Tensor:
        return reference.linear_cross_entropy(hidden, table, bias, inputs["targets"], inputs["replaced"], other)

    # The loss is in single precision, so the steps are long and the tolerance is wide.
    assert torch.autograd.gradcheck(loss, double, eps=1e-2, atol=2e-3, rtol=1e-3)


def test_a_replaced_target_gives_its_own_row_nothing_and_its_bias_the_gradient() -> None:
    hidden, table, bias = torch.ones(1, 2), torch.eye(2), torch.zeros(2)
    table.requires_grad_()
    bias.requires_grad_()
    other = torch.zeros(1, requires_grad=True)
    loss = linear_cross_entropy(hidden, table, bias, torch.tensor([0]), torch.tensor([True]), other)
    loss.sum().backward()
    probability = torch.tensor([0.0, 1.0]).softmax(0)
    torch.testing.assert_close(loss.detach(), -probability[:1].log())
    torch.testing.assert_close(table.grad, torch.stack([torch.zeros(2), probability[1] * hidden[0]]))
    torch.testing.assert_close(bias.grad, probability - torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(other.grad, probability[:1] - 1)


def test_without_replacements_it_is_a_linear_layer_and_cross_entropy_to_the_bit() -> None:
    inputs = _inputs(rows=9, columns=31, width=8)
    hidden, table, bias, targets = (inputs[name] for name in ("hidden", "table", "bias", "targets"))
    expected = F.cross_entropy(F.linear(hidden, table, bias), targets, reduction="none")
    assert torch.equal(linear_cross_entropy(hidden, table, bias, targets), expected)
    without = linear_cross_entropy(hidden, table, None, targets)
    assert torch.equal(without, F.cross_entropy(F.linear(hidden, table), targets, reduction="none"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_of_hidden_is_that_of_the_logits(dtype: torch.dtype) -> None:
    inputs = _inputs()
    hidden, table = inputs["hidden"].to(dtype), inputs["table"].to(dtype)
    loss = linear_cross_entropy(hidden, table, inputs["bias"], inputs["targets"], inputs["replaced"], inputs["other"])
    logits = F.linear(hidden, table, inputs["bias"].to(dtype)).float()
    kept = ~inputs["replaced"]
    expected = F.cross_entropy(logits, inputs["targets"], reduction="none")
    assert loss.dtype == torch.float32
    assert torch.equal(loss[kept], expected[kept])
    assert not torch.equal(loss[~kept], expected[~kept])


def test_no_rows_give_no_losses() -> None:
    assert linear_cross_entropy(torch.ones(0, 3), torch.ones(5, 3), None, torch.ones(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": None}, "replaced and other come together"),
        ({"replaced": None}, "replaced and other come together"),
        ({"hidden": torch.ones(6, 4)}, r"hidden \(6, 4\) does not fit a table \(5, 3\)"),
        ({"hidden": torch.ones(2, 3, 3)}, r"hidden \(2, 3, 3\) does not fit"),
        ({"targets": torch.zeros(5, dtype=torch.int64)}, r"targets must have the shape \(6,\), got \(5,\)"),
        ({"bias": torch.zeros(6)}, r"bias must have the shape \(5,\), got \(6,\)"),
        ({"replaced": torch.zeros(6, 1, dtype=torch.bool)}, r"replaced must have the shape \(6,\)"),
        ({"other": torch.zeros(1)}, r"other must have the shape \(6,\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor | None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        linear_cross_entropy(**(_inputs() | change))


def test_the_kernel_path_follows_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from varsmooth.ops.linear_cross_entropy import kernel

    seen: list[torch.dtype] = []

    def spy(hidden: Tensor, table: Tensor, *rest: Tensor | None) -> Tensor:
        seen.extend((hidden.dtype, table.dtype))
        return hidden.sum(1)

    monkeypatch.setattr(package, "kernels_for", lambda _: True)
    monkeypatch.setattr(kernel, "linear_cross_entropy", spy)
    inputs = _inputs()
    linear_cross_entropy(**inputs)
    with torch.autocast("cpu", torch.bfloat16):
        linear_cross_entropy(**inputs)
    linear_cross_entropy(**(inputs | {"hidden": inputs["hidden"].bfloat16()}))
    assert seen == [torch.float32] * 2 + [torch.bfloat16] * 4
