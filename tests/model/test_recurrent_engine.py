"""The fast ways to run the recurrent stack against its ordinary way: wired up on the CPU, and on a GPU for real."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import varsmooth.model.recurrent as recurrent_module
import varsmooth.model.recurrent_engine as engine_module
import varsmooth.ops.draw_matrices as draw_module
from varsmooth.draws import DrawKey
from varsmooth.errors import InputError
from varsmooth.model import RecurrentStack
from varsmooth.model.recurrent_engine import chosen_engine, recurrent_engine
from varsmooth.ops.backend import reference_only

KEY = DrawKey(seed=11, step=4)
FUSED = (
    {"dropout": 0.4},
    {"dropout": 0.0},
    {"dropout": 0.4, "variance": 0.01},
    {"dropout": 0.4, "dropout_kind": "dropconnect"},
)
UPDATE = ({"dropout": 0.4, "dropout_kind": "update"}, {"dropout": 0.4, "dropout_kind": "update", "variance": 0.01})
STEPWISE = {"dropout": 0.4, "dropout_scope": "sequence"}
ENGINES = [("lstm", "cudnn"), ("gru", "cudnn"), ("lstm", "persistent")]
CASES = [*((*engine, noise) for engine in ENGINES for noise in FUSED), *(("lstm", "persistent", noise) for noise in UPDATE)]
"""Other engines drop updates step by step, in torch's own operations."""


def make_stack(cell: str, width: int, layers: int = 2, device: str = "cpu", **noise) -> RecurrentStack:
    stack = RecurrentStack(cell, width, layers, **noise)
    stack.reset_parameters(torch.Generator().manual_seed(3))
    for bias in stack.bias:
        nn.init.uniform_(bias, -1, 1, generator=torch.Generator().manual_seed(4))
    return stack.to(device)


def make_window(stack: RecurrentStack, steps: int, batch: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Inputs, and a state that is a constant, as the trainer's is."""
    generator, device = torch.Generator().manual_seed(5), stack.bias[0].device
    inputs = torch.randn(steps, batch, stack.width, generator=generator).to(device)
    state = tuple(torch.randn(part.shape, generator=generator).to(device) for part in stack.initial_state(batch))
    return inputs.requires_grad_(), state


def run(stack: RecurrentStack, inputs: Tensor, state: tuple[Tensor, ...], key: DrawKey | None = KEY) -> dict[str, Tensor]:
    """Outputs, the state after them, and every gradient of a sum over the outputs, by name."""
    outputs, final = stack(inputs, state, key)
    weights = torch.linspace(-1, 2, outputs.numel(), device=outputs.device).view(outputs.shape)
    named = {**dict(stack.named_parameters()), "inputs": inputs}
    found = torch.autograd.grad((outputs.float() * weights).sum(), list(named.values()))
    return {
        "outputs": outputs.detach(),
        **{f"state {number}": part.detach() for number, part in enumerate(final)},
        **dict(zip(named, found, strict=True)),
    }


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert wanted.any(), name
        distance = (found[name].float() - wanted.float()).norm() / wanted.float().norm()
        assert distance < tolerance, f"{name}: {distance}"


@pytest.fixture
def as_if_on_gpu(monkeypatch):
    """The stack takes the way of a GPU; the matrices are drawn by the interpreted kernel, the rest runs in torch."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    monkeypatch.setattr(recurrent_module, "has_kernel", lambda _: True)
    monkeypatch.setattr(draw_module, "has_kernel", lambda _: True)


@pytest.mark.parametrize(("cell", "engine", "noise"), CASES)
def test_every_engine_equals_the_ordinary_way(cell, engine, noise, as_if_on_gpu, monkeypatch):
    stack = make_stack(cell, 5, **noise)
    inputs, state = make_window(stack, 4, 3)
    with monkeypatch.context() as plain:
        plain.setattr(recurrent_module, "has_kernel", lambda _: False)
        expected = run(stack, inputs, state)
    monkeypatch.setattr(engine_module, "supported", lambda *_: True)
    with recurrent_engine(engine):
        assert_near(run(stack, inputs, state), expected, 1e-5)


def test_draws_of_sequences_take_the_stepwise_way_on_a_gpu_too(as_if_on_gpu, monkeypatch):
    monkeypatch.setattr(recurrent_module, "draw_matrices", None)
    stack = make_stack("lstm", 5, **STEPWISE)
    inputs, state = make_window(stack, 4, 3)
    assert stack(inputs, state, KEY)[0].shape == inputs.shape


def test_dropped_updates_go_step_by_step_only_where_the_persistent_engine_cannot_run(as_if_on_gpu, monkeypatch):
    taken = []
    for name in ("run_stepwise", "run_persistent", "run_cudnn"):
        way = getattr(recurrent_module, name)
        monkeypatch.setattr(recurrent_module, name, lambda *parts, way=way, name=name: taken.append(name) or way(*parts))
    monkeypatch.setattr(engine_module, "supported", lambda *_: True)
    for cell, engine in ENGINES:
        stack = make_stack(cell, 5, **UPDATE[0])
        with recurrent_engine(engine):
            for key in (KEY, None):
                stack(*make_window(stack, 4, 3), key)
    assert taken == [*["run_stepwise", "run_cudnn"] * 2, "run_persistent", "run_cudnn"]


def test_prediction_never_takes_the_persistent_engine(as_if_on_gpu, monkeypatch):
    stack = make_stack("lstm", 5, dropout=0.4, variance=0.1)
    inputs, state = make_window(stack, 4, 3)
    monkeypatch.setattr(engine_module, "supported", lambda *_: True)
    monkeypatch.setattr(recurrent_module, "run_persistent", None)
    with recurrent_engine("persistent"):
        found = run(stack, inputs, state, None)
    assert_near(found, run(make_stack("lstm", 5), inputs, state, None), 1e-6)


def test_the_persistent_engine_keeps_the_state_in_full_precision(as_if_on_gpu, monkeypatch):
    monkeypatch.setattr(engine_module, "supported", lambda *_: True)
    monkeypatch.setattr(recurrent_module, "compute_dtype", lambda _: torch.bfloat16)
    run_layers, came_in = engine_module.lstm_layers, []
    monkeypatch.setattr(engine_module, "lstm_layers", lambda *parts: came_in.append(parts[2:4]) or run_layers(*parts))
    stack = make_stack("lstm", 5)
    inputs, state = make_window(stack, 4, 3)
    with recurrent_engine("persistent"):
        outputs, final = stack(inputs, state, KEY)
        again = stack(inputs, final, KEY)[1]
    assert [part.dtype for part in (outputs, *final, *again)] == [torch.bfloat16, *[torch.float32] * 4]
    assert not any(part.requires_grad for part in (*final, *again))
    assert torch.equal(final[0][1], outputs[-1].float())
    assert [part.data_ptr() for pair in came_in for part in pair] == [part.data_ptr() for part in (*state, *final)]
    with recurrent_engine("cudnn"):
        outputs, final = stack(inputs, state, KEY)
    assert {part.dtype for part in (outputs, *final)} == {torch.bfloat16}


def test_what_is_supported_is_asked_of_the_recurrent_matrix(as_if_on_gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(engine_module, "supported", lambda *parts: bool(asked.append(parts)) or True)
    monkeypatch.setattr(recurrent_module, "compute_dtype", lambda _: torch.bfloat16)
    stack = make_stack("lstm", 5)
    stack(*make_window(stack, 4, 3), KEY)
    ((weight, *others),) = asked
    assert weight is stack.weight_hh[0]
    assert others == [3, torch.bfloat16]


def test_shards_drop_the_updates_of_the_whole_batch(as_if_on_gpu, monkeypatch):
    monkeypatch.setattr(engine_module, "supported", lambda *_: True)
    stack = make_stack("lstm", 5, **UPDATE[1])
    inputs, state = make_window(stack, 4, 5)
    with recurrent_engine("persistent"):
        whole = stack(inputs, state, KEY)[0]
        for first, last in ((0, 2), (2, 5)):
            part = stack(inputs[:, first:last], tuple(each[:, first:last] for each in state), KEY, first_sequence=first)[0]
            torch.testing.assert_close(part, whole[:, first:last])


def test_nothing_is_drawn_in_vain(as_if_on_gpu, monkeypatch):
    monkeypatch.setattr(recurrent_module, "draw_matrices", None)
    stack = make_stack("gru", 5, **UPDATE[1])
    inputs, state = make_window(stack, 4, 3)
    assert stack(inputs, state, KEY)[0].shape == inputs.shape


def test_choice_of_the_engine(monkeypatch):
    stack = make_stack("lstm", 5)
    inputs, state = make_window(stack, 4, 3)
    drawn = stack.weight_hh[0], torch.float32
    assert chosen_engine("lstm", *drawn, inputs, state) == "cudnn", "there is no GPU here, or it has no room for this width"
    with (
        pytest.raises(InputError, match=r"cannot run this lstm: batch 3, width 5, torch.float32"),
        recurrent_engine("persistent"),
    ):
        chosen_engine("lstm", *drawn, inputs, state)
    monkeypatch.setattr(engine_module, "supported", lambda *_: True)
    assert chosen_engine("lstm", *drawn, inputs, state) == "persistent"
    assert chosen_engine("gru", *drawn, inputs, state[:1]) == "cudnn"
    assert chosen_engine("lstm", *drawn, inputs, (state[0], state[1].clone().requires_grad_())) == "cudnn"
    with recurrent_engine("cudnn"):
        assert chosen_engine("lstm", *drawn, inputs, state) == "cudnn"
        with recurrent_engine("auto"):
            assert chosen_engine("lstm", *drawn, inputs, state) == "persistent"
    assert chosen_engine("lstm", *drawn, inputs, state) == "persistent"
    with pytest.raises(InputError, match=r"engine must be one of .* did you mean 'cudnn'"), recurrent_engine("cuddn"):
        pass


@contextmanager
def syncs_are_errors() -> Iterator[None]:
    def set_mode(mode: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it calls itself a prototype
            torch.cuda.set_sync_debug_mode(mode)

    set_mode("error")
    try:
        yield
    finally:
        set_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize(("cell", "engine", "noise"), CASES)
@pytest.mark.parametrize(("width", "batch", "layers"), [(64, 16, 2), (512, 64, 2), (32, 3, 1)])
def test_gpu_engines_equal_the_reference(cell, engine, width, batch, layers, noise):
    """In bf16 within its rounding of a reference in fp32; warnings are errors, so cuDNN compacted nothing."""
    stack = make_stack(cell, width, layers, "cuda", **noise)
    inputs, state = make_window(stack, 9, batch)
    with reference_only():
        expected = run(stack, inputs, state)
    with recurrent_engine("cudnn" if engine == "cudnn" else "auto"):
        assert_near(run(stack, inputs, state), expected, 5e-3)  # cuDNN may round to TF32
    with recurrent_engine(engine), torch.autocast("cuda", torch.bfloat16):
        found = run(stack, inputs, state)
    assert found["outputs"].dtype == torch.bfloat16
    assert all(found[name].dtype == torch.float32 for name, _ in stack.named_parameters())
    assert_near(found, expected, 3e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gpu_prediction_is_that_of_the_reference(cell):
    stack = make_stack(cell, 64, device="cuda", dropout=0.4, variance=0.1)
    inputs, state = make_window(stack, 9, 16)
    with reference_only():
        expected = stack(inputs, state, None)
    with torch.no_grad(), recurrent_engine("persistent"):
        found = stack(inputs, state, None)
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("noise", [*FUSED, *UPDATE, STEPWISE])
@pytest.mark.parametrize(("cell", "engine"), ENGINES)
def test_gpu_graph_follows_the_step_and_nothing_waits(cell, engine, noise):
    stack = make_stack(cell, 64, device="cuda", **noise)
    inputs, state = make_window(stack, 5, 16)
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    key = DrawKey(KEY.seed, step)
    # Without a cache, which would carry copies of the weights from one run into the graph.
    with recurrent_engine(engine), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run(stack, inputs, state, key)
        torch.cuda.current_stream().wait_stream(side)
        with syncs_are_errors():
            run(stack, inputs, state, key)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run(stack, inputs, state, key)
        for number in (3, 8):
            step.fill_(number)
            graph.replay()
            assert_near(captured, run(stack, inputs, state, DrawKey(KEY.seed, number)), 5e-3)
