"""The recurrent stack against torch's own modules, and its two ways of running against each other."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn

from varsmooth.draws import DrawKey
from varsmooth.errors import InputError
from varsmooth.model import RecurrentStack, recurrent_run
from varsmooth.model.recurrent_run import DrawnLayer, DrawnMatrix, run_fused, run_stepwise

CELLS = ("lstm", "gru")
T, B, WIDTH, LAYERS = 5, 3, 7, 2
KEY = DrawKey(seed=11, step=4)
KINDS = (("rows", "batch"), ("rows", "sequence"), ("dropconnect", "batch"), ("update", "batch"))
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def make_stack(cell: str, layers: int = LAYERS, width: int = WIDTH, **noise) -> RecurrentStack:
    stack = RecurrentStack(cell, width, layers, **noise)
    stack.reset_parameters(torch.Generator().manual_seed(3))
    for bias in stack.bias:
        nn.init.uniform_(bias, -1, 1, generator=torch.Generator().manual_seed(4))
    return stack


def make_window(stack: RecurrentStack, steps: int = T, batch: int = B) -> tuple[Tensor, tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(steps, batch, stack.width, generator=generator)
    state = tuple(torch.randn(part.shape, generator=generator) for part in stack.initial_state(batch))
    return inputs.requires_grad_(), tuple(part.requires_grad_() for part in state)


def columns(tensors: tuple[Tensor, ...], first: int, last: int) -> tuple[Tensor, ...]:
    return tuple(tensor[:, first:last] for tensor in tensors)


def torch_module(stack: RecurrentStack, matrices: dict[str, Tensor] | None = None) -> nn.LSTM | nn.GRU:
    """The same network as torch's own module, with some matrices replaced by name."""
    module = {"lstm": nn.LSTM, "gru": nn.GRU}[stack.cell](stack.width, stack.width, stack.layers)
    values = {**dict(stack.named_parameters()), **(matrices or {})}
    with torch.no_grad():
        for layer in range(stack.layers):
            getattr(module, f"weight_ih_l{layer}").copy_(values[f"weight_ih.{layer}"])
            getattr(module, f"weight_hh_l{layer}").copy_(values[f"weight_hh.{layer}"])
            getattr(module, f"bias_ih_l{layer}").copy_(values[f"bias.{layer}"])
            getattr(module, f"bias_hh_l{layer}").zero_()
    return module


def run_torch(module: nn.LSTM | nn.GRU, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    outputs, final = module(inputs, state if isinstance(module, nn.LSTM) else state[0])
    return outputs, *(final if isinstance(module, nn.LSTM) else (final,))


def gradients(results: tuple[Tensor, tuple[Tensor, ...]], named: dict[str, Tensor]) -> dict[str, Tensor]:
    outputs, final = results
    generator = torch.Generator().manual_seed(6)
    loss = sum((part * torch.randn(part.shape, generator=generator)).sum() for part in (outputs, *final))
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def assert_all_close(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


def assert_same_runs(runs: list[tuple[Tensor, tuple[Tensor, ...]]], named: dict[str, Tensor]) -> None:
    """Outputs, states and every gradient agree."""
    first, second = runs
    assert_all_close((first[0], *first[1]), (second[0], *second[1]))
    first_gradients, second_gradients = gradients(first, named), gradients(second, named)
    for name in named:
        torch.testing.assert_close(
            first_gradients[name], second_gradients[name], rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


def named_tensors(stack: RecurrentStack, inputs: Tensor, state: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {**dict(stack.named_parameters()), "inputs": inputs, **{f"state {n}": part for n, part in enumerate(state)}}


@pytest.mark.parametrize(("width", "layers"), [(7, 1), (12, 3)])
def test_parameter_count_has_one_bias_per_gate(width, layers):
    lstm, gru = (sum(p.numel() for p in RecurrentStack(cell, width, layers).parameters()) for cell in CELLS)
    assert lstm == layers * (8 * width**2 + 4 * width)
    assert gru == layers * (6 * width**2 + 3 * width)


def test_state_dict_holds_parameters_only():
    stack = make_stack("lstm")
    assert set(stack.state_dict()) == {
        f"{name}.{layer}" for name in ("weight_ih", "weight_hh", "bias") for layer in range(LAYERS)
    }


def test_initial_weights_follow_the_generator_and_the_forget_bias_is_one():
    first, again, other = (RecurrentStack("lstm", 16, 2) for _ in range(3))
    for stack, seed in ((first, 1), (again, 1), (other, 2)):
        stack.reset_parameters(torch.Generator().manual_seed(seed))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.weight_ih[0], other.weight_ih[0])
    assert not torch.equal(first.weight_ih[0], first.weight_hh[0])
    for weight in (*first.weight_ih, *first.weight_hh):
        assert 0.24 < weight.abs().max() <= 0.25
    for bias in first.bias:
        assert bias.view(4, 16).tolist() == [[0.0] * 16, [1.0] * 16, [0.0] * 16, [0.0] * 16]
    assert not RecurrentStack("gru", 16, 1).bias[0].any()


@pytest.mark.parametrize("cell", CELLS)
def test_initial_state_shapes(cell):
    state = make_stack(cell).initial_state(B, "cpu", torch.float64)
    assert [tuple(part.shape) for part in state] == [(LAYERS, B, WIDTH)] * (2 if cell == "lstm" else 1)
    assert all(part.dtype == torch.float64 and not part.any() for part in state)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("key", [None, KEY])
def test_without_noise_it_is_torchs_module_bit_for_bit(cell, key):
    stack = make_stack(cell, dropout=0.0 if key else 0.5, variance=0.0 if key else 0.1)
    inputs, state = make_window(stack)
    outputs, final = stack(inputs, state, key)
    expected = run_torch(torch_module(stack), inputs, state)
    assert all(torch.equal(a, b) for a, b in zip((outputs, *final), expected, strict=True))


@pytest.mark.parametrize(("kind", "scope"), KINDS)
def test_dropout_zero_is_bit_identical_in_every_kind(kind, scope):
    stack = make_stack("lstm", dropout_kind=kind, dropout_scope=scope)
    inputs, state = make_window(stack)
    assert torch.equal(stack(inputs, state, KEY)[0], stack(inputs, state, None)[0])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("steps", "batch", "width", "layers"), [(T, B, WIDTH, LAYERS), (1, 1, 1, 1), (4, 2, 5, 3)])
def test_stepwise_equals_fused(cell, steps, batch, width, layers):
    stack = make_stack(cell, layers, width)
    inputs, state = make_window(stack, steps, batch)
    drawn = [
        DrawnLayer(DrawnMatrix(ih), DrawnMatrix(hh), bias, stack.zero_bias)
        for ih, hh, bias in zip(stack.weight_ih, stack.weight_hh, stack.bias, strict=True)
    ]
    runs = [run(cell, drawn, inputs, state) for run in (run_fused, run_stepwise)]
    assert_same_runs(runs, named_tensors(stack, inputs, state))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("variance", [0.0, 0.04])
def test_sequence_zero_of_sequence_scope_is_the_draw_of_batch_scope(cell, variance):
    """So the loop with factors and noise equals the fused call with them."""
    noise = {"dropout": 0.4, "variance": variance}
    stack, by_sequence = make_stack(cell, **noise), make_stack(cell, dropout_scope="sequence", **noise)
    by_sequence.load_state_dict(stack.state_dict())
    inputs, state = make_window(stack, batch=1)
    first, second = stack(inputs, state, KEY), by_sequence(inputs, state, KEY)
    assert_all_close((first[0], *first[1]), (second[0], *second[1]))
    wanted = gradients(first, dict(stack.named_parameters()))
    for name, gradient in gradients(second, dict(by_sequence.named_parameters())).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_rows_are_the_weights_that_leave_a_unit(cell):
    """The gradient shows which columns were dropped; torch's own module with those columns masked gives the same outputs."""
    stack = make_stack(cell, dropout=0.4)
    inputs, state = make_window(stack)
    found = gradients(stack(inputs, state, KEY), dict(stack.named_parameters()))
    masks = {name: (found[name] != 0).any(0) for name in ("weight_hh.0", "weight_hh.1", "weight_ih.1")}
    assert found["weight_ih.0"].all()
    for name, mask in masks.items():
        assert 0 < mask.sum() < WIDTH, name
        assert torch.equal(found[name] != 0, mask.expand_as(found[name])), name
    masked = {name: stack.get_parameter(name) * mask / (1 - 0.4) for name, mask in masks.items()}
    expected = run_torch(torch_module(stack, masked), inputs, state)
    outputs, final = stack(inputs, state, KEY)
    assert_all_close((outputs, *final), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_dropconnect_masks_elements_of_weight_hh_alone(cell):
    stack = make_stack(cell, dropout=0.4, dropout_kind="dropconnect")
    inputs, state = make_window(stack)
    found = gradients(stack(inputs, state, KEY), dict(stack.named_parameters()))
    masks = {name: found[name] != 0 for name in ("weight_hh.0", "weight_hh.1")}
    assert found["weight_ih.0"].all()
    assert found["weight_ih.1"].all()
    assert not torch.equal(masks["weight_hh.0"], masks["weight_hh.1"])
    for mask in masks.values():
        assert mask.any(0).all()
        assert mask.any(1).all()
        assert 0.4 < mask.float().mean() < 0.8
    masked = {name: stack.get_parameter(name) * mask / (1 - 0.4) for name, mask in masks.items()}
    expected = run_torch(torch_module(stack, masked), inputs, state)
    outputs, final = stack(inputs, state, KEY)
    assert_all_close((outputs, *final), expected)


def test_update_dropout_multiplies_the_lstms_candidate():
    """From an empty memory, c = i * g, so c shows the factor itself."""
    stack = make_stack("lstm", layers=1, dropout=0.25, dropout_kind="update")
    inputs, _ = make_window(stack, steps=1)
    _, plain = stack(inputs, stack.initial_state(B), None)
    _, dropped = stack(inputs, stack.initial_state(B), KEY)
    assert_two_valued(dropped[1] / plain[1], 0.25)


def test_update_dropout_of_the_gru_is_fresh_at_every_step_and_sequence():
    """With an update gate held at 0 and no recurrence the outputs are the candidates, so each shows its factor."""
    stack = make_stack("gru", layers=1, dropout=0.25, dropout_kind="update")
    with torch.no_grad():
        stack.weight_hh[0].zero_()
        stack.bias[0][WIDTH : 2 * WIDTH] = -100
    inputs, state = make_window(stack)
    factor = stack(inputs, state, KEY)[0] / stack(inputs, state, None)[0]
    assert_two_valued(factor, 0.25)
    masks = (factor > 0.5).view(T * B, WIDTH).tolist()
    assert len({tuple(mask) for mask in masks}) > T * B // 2


def assert_two_valued(factor: Tensor, dropout: float) -> None:
    kept = factor > 0.5
    assert kept.any()
    assert not kept.all()
    torch.testing.assert_close(factor, kept / (1 - dropout), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "scope"), KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_one_key_one_draw(cell, kind, scope):
    stack = make_stack(cell, dropout=0.5, dropout_kind=kind, dropout_scope=scope)
    inputs, state = make_window(stack)
    before = torch.get_rng_state()
    outputs = stack(inputs, state, KEY)[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(stack(inputs, state, KEY)[0], outputs)
    assert torch.equal(stack(inputs, state, DrawKey(KEY.seed, torch.tensor(KEY.step), site=6))[0], outputs)
    assert not torch.equal(stack(inputs, state, DrawKey(KEY.seed, KEY.step + 1))[0], outputs)
    assert not torch.equal(stack(inputs, state, DrawKey(KEY.seed + 1, KEY.step))[0], outputs)


@pytest.mark.parametrize(("kind", "scope"), KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_shards_draw_what_the_whole_batch_draws(cell, kind, scope):
    stack = make_stack(cell, dropout=0.5, dropout_kind=kind, dropout_scope=scope, variance=0.01)
    inputs, state = make_window(stack, batch=5)
    outputs, final = stack(inputs, state, KEY)
    for first, last in ((0, 2), (2, 5)):
        part, part_final = stack(inputs[:, first:last], columns(state, first, last), KEY, first_sequence=first)
        assert_all_close((part, *part_final), columns((outputs, *final), first, last))


def test_sequence_scope_gives_each_sequence_its_own_mask():
    stack = make_stack("lstm", dropout=0.5, dropout_scope="sequence")
    inputs, state = make_window(stack, batch=1)
    wide = stack(inputs.expand(-1, 4, -1), tuple(part.expand(-1, 4, -1) for part in state), KEY)[0]
    assert all(not torch.equal(wide[:, a], wide[:, b]) for a, b in itertools.combinations(range(4), 2))


@pytest.mark.parametrize(("kind", "scope"), [*KINDS[:3], ("update", "sequence")])
def test_state_carries(kind, scope):
    """Masks are fixed over a window, so its two parts equal the whole; update dropout is fresh, so only in prediction."""
    key = None if kind == "update" else KEY
    for cell in CELLS:
        stack = make_stack(cell, dropout=0.5, dropout_kind=kind, dropout_scope=scope, variance=0.01)
        inputs, state = make_window(stack, steps=10)
        outputs, final = stack(inputs, state, key)
        first, middle = stack(inputs[:4], state, key)
        second, last = stack(inputs[4:], middle, key)
        assert_all_close((torch.cat([first, second]), *last), (outputs, *final))


def test_prediction_ignores_all_noise_and_is_deterministic():
    stack = make_stack("lstm", dropout=0.5, dropout_kind="update", variance=1.0)
    plain = make_stack("lstm")
    inputs, state = make_window(stack)
    outputs = stack(inputs, state, None)[0]
    assert torch.equal(outputs, stack(inputs, state, None)[0])
    assert torch.equal(outputs, plain(inputs, state, None)[0])


def test_variance_is_added_to_the_matrices_unscaled_by_dropout():
    stack = make_stack("gru", dropout=0.5, dropout_kind="dropconnect", variance=0.04)
    matrices = [weight for pair in zip(stack.weight_ih, stack.weight_hh, strict=True) for weight in pair]
    names = [f"weight_{side}.{layer}" for layer in range(LAYERS) for side in ("ih", "hh")]
    factors = stack.noise.matrix_factors(KEY, matrices, torch.arange(B))
    drawn = {
        name: matrix * (1 if factor is None else factor) + added
        for name, matrix, factor, added in zip(names, matrices, factors, stack.noise.gaussians(KEY, matrices), strict=True)
    }
    inputs, state = make_window(stack)
    outputs, final = stack(inputs, state, KEY)
    assert_all_close((outputs, *final), run_torch(torch_module(stack, drawn), inputs, state))


def test_fused_says_which_kinds_one_call_can_run():
    fused = {
        (kind, scope): RecurrentStack("gru", 3, 1, dropout=0.2, dropout_kind=kind, dropout_scope=scope).fused
        for kind, scope in KINDS
    }
    assert fused == {KINDS[0]: True, KINDS[1]: False, KINDS[2]: True, KINDS[3]: False}
    assert RecurrentStack("gru", 3, 1, dropout_kind="update").fused


@pytest.mark.parametrize(("kind", "scope"), KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_autocast_trains(cell, kind, scope):
    stack = make_stack(cell, dropout=0.2, dropout_kind=kind, dropout_scope=scope)
    inputs, state = make_window(stack)
    exact = stack(inputs, state, KEY)[0]
    with torch.autocast("cpu", torch.bfloat16):
        outputs, final = stack(inputs, state, KEY)
        stack(inputs, final, KEY)
    torch.testing.assert_close(outputs.float(), exact, rtol=0.05, atol=0.05)
    found = gradients((outputs, final), dict(stack.named_parameters()))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in found.values())


def test_an_lstm_runs_in_single_precision_where_the_cpu_has_none_in_bfloat16(monkeypatch):
    monkeypatch.setattr(recurrent_run, "has_bfloat16_lstm", lambda: False)
    stack = make_stack("lstm", dropout=0.2)
    inputs, state = make_window(stack)
    exact = stack(inputs, state, KEY)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(stack(inputs, state, KEY)[0], exact)
        low = stack(inputs.bfloat16(), tuple(part.bfloat16() for part in state), KEY)[0]
    torch.testing.assert_close(low, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, "dropout must be"),
        ({"dropout": float("nan")}, "dropout must be"),
        ({"variance": -1.0}, "variance must be finite and at least 0, got -1.0"),
        ({"variance": float("inf")}, "variance must be"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"cell": "lstn"}, "cell must be one of lstm, gru, got 'lstn'; did you mean 'lstm'"),
        ({"dropout_kind": "row"}, "dropout_kind must be .* did you mean 'rows'"),
        ({"dropout_scope": "sequences"}, "dropout_scope must be .* did you mean 'sequence'"),
        (
            {"dropout_kind": "dropconnect", "dropout_scope": "sequence"},
            "dropout_kind 'dropconnect' .* dropout_scope 'sequence'",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        RecurrentStack(**{"cell": "lstm", "width": 4, "layers": 1, **options})


def test_bad_shapes_are_named():
    stack = make_stack("lstm")
    inputs, state = make_window(stack)
    for bad in (inputs[0], inputs[:, :, :-1], inputs[:0]):
        with pytest.raises(InputError, match=r"inputs must be \[T, B, width = 7\]"):
            stack(bad, state, None)
    for bad_state in (state[:1], columns(state, 0, 1)):
        with pytest.raises(InputError, match="state must have shapes"):
            stack(inputs, bad_state, None)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "scope"), KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_gpu_draws_what_the_cpu_draws(cell, kind, scope):
    stack = make_stack(cell, dropout=0.5, dropout_kind=kind, dropout_scope=scope, variance=0.01)
    inputs, state = make_window(stack)
    expected, expected_final = stack(inputs, state, KEY)
    wanted = gradients((expected, expected_final), dict(stack.named_parameters()))
    stack.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs, final = stack(inputs.cuda(), tuple(part.cuda() for part in state), KEY)
    torch.testing.assert_close(outputs.cpu(), expected, rtol=1e-3, atol=1e-3)
    found = gradients((outputs.cpu(), tuple(part.cpu() for part in final)), dict(stack.named_parameters()))
    for name in wanted:
        torch.testing.assert_close(found[name].cpu(), wanted[name], rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", CELLS)
def test_gpu_autocast_runs_in_the_type_it_is_asked_for(cell):
    stack = make_stack(cell, dropout=0.2)
    inputs, state = make_window(stack)
    exact = stack(inputs, state, KEY)[0]
    stack.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        outputs, final = stack(inputs.cuda(), tuple(part.cuda() for part in state), KEY)
    assert {part.dtype for part in (outputs, *final)} == {torch.bfloat16}
    torch.testing.assert_close(outputs.float().cpu(), exact, rtol=0.05, atol=0.05)
    found = gradients((outputs.cpu().float(), tuple(part.cpu().float() for part in final)), dict(stack.named_parameters()))
    assert all(gradient.dtype == torch.float32 and gradient.any() for gradient in found.values())
