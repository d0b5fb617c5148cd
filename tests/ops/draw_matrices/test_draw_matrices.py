"""The draw of the recurrent matrices: the kernel, interpreted or on a GPU, against the eager definition."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from varsmooth.draws import DrawKey, Site
from varsmooth.ops.backend import reference_only
from varsmooth.ops.draw_matrices import DrawnWeights, Dropout, draw_matrices, reference
from varsmooth.ops.draw_matrices.layout import FlatLayout, packed_layout

kernel = pytest.importorskip("varsmooth.ops.draw_matrices.kernel", exc_type=ImportError)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GATES = {"lstm": 4, "gru": 3}
KEY = DrawKey(seed=11, step=4, site=Site.RECURRENT)
BF16 = torch.bfloat16


def make_weights(cell: str, layers: int, width: int, device: str = "cpu") -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = GATES[cell] * width
    matrices = [torch.randn(rows, width, generator=generator).to(device).requires_grad_() for _ in range(2 * layers)]
    return matrices, [torch.randn(rows, generator=generator).to(device).requires_grad_() for _ in range(layers)]


def gradients(drawn: DrawnWeights, weights: tuple[list[Tensor], list[Tensor]]) -> dict[str, Tensor]:
    """By name, of a sum in which every element has its own weight."""
    generator = torch.Generator().manual_seed(2)
    parts = [*drawn.matrices, *drawn.biases[::2]]
    loss = sum((part * torch.randn(part.shape, generator=generator).to(part)).sum(dtype=torch.float32) for part in parts)
    names = [
        f"{kind} {number}" for kind, group in zip(("matrix", "bias"), weights, strict=True) for number in range(len(group))
    ]
    return dict(zip(names, torch.autograd.grad(loss, [*weights[0], *weights[1]]), strict=True))


def assert_same_values(found: DrawnWeights, expected: DrawnWeights) -> None:
    """Bit for bit; but Triton's interpreter cuts what it should round to bf16, so there within the last bit."""
    for one, other in zip([*found.matrices, *found.biases], [*expected.matrices, *expected.biases], strict=True):
        assert one.dtype == other.dtype
        if one.dtype == BF16 and one.device.type == "cpu":
            torch.testing.assert_close(one, other, rtol=2**-7, atol=0)
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.9])
@pytest.mark.parametrize(("cell", "layers", "width"), [("lstm", 1, 3), ("gru", 2, 17), ("lstm", 3, 33), ("gru", 1, 1)])
def test_kernel_equals_reference(device, dtype, rate, cell, layers, width):
    weights = make_weights(cell, layers, width, device)
    found, expected = (way.draw_matrices(*weights, Dropout(rate), KEY, dtype) for way in (kernel, reference))
    assert_same_values(found, expected)
    wanted = gradients(expected, weights)
    for name, gradient in gradients(found, weights).items():
        assert gradient.dtype == torch.float32, name
        assert torch.equal(gradient, wanted[name]), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("step", [0, 2**32 - 1])
def test_draws_are_those_of_the_key(device, seed, step):
    weights = make_weights("gru", 1, 33, device)
    for site in (0, Site.RECURRENT):
        expected = reference.draw_matrices(*weights, Dropout(0.5), DrawKey(seed, step, site), torch.float32)
        for number in (step, torch.tensor(step, device=device)):
            found = kernel.draw_matrices(*weights, Dropout(0.5), DrawKey(seed, number, site), torch.float32)
            assert_same_values(found, expected)
    other = kernel.draw_matrices(*weights, Dropout(0.5), DrawKey(seed, step ^ 1, site), torch.float32)
    assert not torch.equal(other.matrices[1], expected.matrices[1])


@pytest.mark.parametrize("device", DEVICES)
def test_matrices_of_several_tiles(device, monkeypatch):
    monkeypatch.setattr(kernel, "TILE", 128)
    weights = make_weights("gru", 1, 17, device)
    found, expected = (way.draw_matrices(*weights, Dropout(0.4), KEY, torch.float32) for way in (kernel, reference))
    assert_same_values(found, expected)
    wanted = gradients(expected, weights)
    assert all(torch.equal(gradient, wanted[name]) for name, gradient in gradients(found, weights).items())


@pytest.mark.parametrize("way", [kernel, reference])
def test_columns_are_dropped_in_every_matrix_but_the_first(way):
    weights = make_weights("lstm", 2, 33)
    drawn = way.draw_matrices(*weights, Dropout(0.5), KEY, torch.float32)
    assert torch.equal(drawn.matrices[0], weights[0][0])
    masks = [(matrix != 0) for matrix in drawn.matrices[1:]]
    for mask, matrix, weight in zip(masks, drawn.matrices[1:], weights[0][1:], strict=True):
        assert torch.equal(mask, mask[:1].expand_as(mask))
        assert 5 < mask[0].sum() < 28
        assert torch.equal(matrix, weight * mask * 2)
    assert not torch.equal(masks[0][0], masks[1][0])
    assert all(torch.equal(drawn.biases[2 * layer], bias) for layer, bias in enumerate(weights[1]))
    assert not any(zeros.any() or zeros.requires_grad for zeros in drawn.biases[1::2])


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_all_results_are_parts_of_one_buffer(dtype):
    weights = make_weights("gru", 2, 5)
    drawn = kernel.draw_matrices(*weights, Dropout(0.5), KEY, dtype)
    parts = [*drawn.matrices, *drawn.biases]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert parts[0].storage_offset() == 0
    assert parts[0].untyped_storage().nbytes() == sum(part.numel() for part in parts) * parts[0].element_size()
    places = sorted(part.storage_offset() for part in parts)
    assert places == [part.storage_offset() for part in parts] == list(packed_layout(15, 5, 2).offsets)
    assert all(part.is_contiguous() for part in parts)


def test_a_layout_with_gaps_leaves_zeros_in_them(monkeypatch):
    gaps = FlatLayout(4, 1, (0, 8, 16, 32), 40)
    monkeypatch.setattr(kernel, "flat_layout", lambda *_: gaps)
    weights = make_weights("lstm", 1, 1)
    drawn = kernel.draw_matrices(*weights, Dropout(0.0), KEY, torch.float32)
    flat = torch.empty(0).set_(drawn.matrices[0].untyped_storage())
    expected = torch.zeros(40)
    for offset, part in zip(gaps.offsets, (*weights[0], *weights[1]), strict=False):
        expected[offset : offset + 4] = part.detach().flatten()
    assert torch.equal(flat, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_with_gaps_and_gradients_that_are_missing(device):
    weights = make_weights("lstm", 1, 6, device)
    found, expected = (
        torch.autograd.grad(
            drawn.matrices[1].t().contiguous()[:, ::2].sum() + drawn.matrices[1].sum(), [*weights[0], *weights[1]]
        )
        for drawn in (way.draw_matrices(*weights, Dropout(0.5), KEY, torch.float32) for way in (kernel, permissive_reference))
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert found[1].any()
    assert not found[0].any()
    assert not found[2].any()


class permissive_reference:  # noqa: N801
    """The reference, all of whose weights take part, so that each has a gradient."""

    @staticmethod
    def draw_matrices(matrices, biases, *rest):
        drawn = reference.draw_matrices(matrices, biases, *rest)
        nothing = sum(part.sum() for part in (*matrices, *biases)) * 0
        return DrawnWeights([matrix + nothing for matrix in drawn.matrices], drawn.biases)


def test_weights_that_are_frozen_get_no_gradient():
    matrices, biases = make_weights("gru", 1, 3)
    drawn = kernel.draw_matrices([matrices[0].detach(), matrices[1]], biases, Dropout(0.5), KEY, torch.float32)
    drawn.matrices[1].sum().backward()
    assert matrices[0].grad is None
    assert matrices[1].grad.any()


def test_a_step_that_moved_on_before_the_gradient_is_noticed():
    weights = make_weights("gru", 1, 3)
    step = torch.tensor(3)
    drawn = kernel.draw_matrices(*weights, Dropout(0.5), DrawKey(1, step), torch.float32)
    step += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        drawn.matrices[1].sum().backward()


def test_without_a_gpu_the_reference_runs(monkeypatch):
    monkeypatch.setattr(kernel, "draw_matrices", None)
    weights = make_weights("gru", 1, 3)
    expected = reference.draw_matrices(*weights, Dropout(0.5), KEY, BF16)
    assert_same_values(draw_matrices(*weights, Dropout(0.5), KEY, BF16), expected)


@pytest.mark.gpu
def test_gpu_runs_the_kernel_and_under_reference_only_the_reference():
    weights = make_weights("lstm", 2, 32, "cuda")
    drawn = draw_matrices(*weights, Dropout(0.5), KEY, BF16)
    assert drawn.matrices[0].untyped_storage().data_ptr() == drawn.biases[-1].untyped_storage().data_ptr()
    with reference_only():
        apart = draw_matrices(*weights, Dropout(0.5), KEY, BF16)
    assert apart.matrices[0].untyped_storage().data_ptr() != apart.biases[-1].untyped_storage().data_ptr()
    assert_same_values(drawn, apart)
    doubles = tuple([part.double() for part in group] for group in weights)
    assert draw_matrices(*doubles, Dropout(0.5), KEY, torch.float64).matrices[1].dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("cell", "layers", "width"), [("lstm", 1, 3), ("gru", 2, 17), ("lstm", 3, 33), ("lstm", 2, 512)])
def test_cudnn_finds_the_weights_as_it_wants_them(dtype, cell, layers, width):
    """It warns when it has to compact them, as it does with the reference's."""
    weights = make_weights(cell, layers, width, "cuda")
    inputs = torch.randn(4, 2, width, device="cuda", dtype=dtype)
    state = [torch.zeros(layers, 2, width, device="cuda", dtype=dtype)] * (2 if cell == "lstm" else 1)

    def run(drawn: DrawnWeights) -> Tensor:
        flat = [tensor for layer in drawn.layers() for tensor in layer]
        options = (flat, True, layers, 0.0, True, False, False)
        return torch.lstm(inputs, state, *options)[0] if cell == "lstm" else torch.gru(inputs, state[0], *options)[0]

    with pytest.warns(UserWarning, match="not part of single contiguous chunk"):
        expected = run(reference.draw_matrices(*weights, Dropout(0.2), KEY, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = run(kernel.draw_matrices(*weights, Dropout(0.2), KEY, dtype))
    found, wanted = (torch.autograd.grad(part.float().square().sum(), weights[0]) for part in (outputs, expected))
    for one, other in zip((outputs, *found), (expected, *wanted), strict=True):
        assert (one - other).norm() <= (1e-5 if dtype == torch.float32 else 5e-3) * other.norm()
