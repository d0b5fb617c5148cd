"""The parts of a step, each alone: forward and backward as the step has them, beside what they cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from varsmooth.bench import floor
from varsmooth.bench.timing import Call
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, VANILLA, WORD, Workload
from varsmooth.draws import DrawKey
from varsmooth.ops.descend import Descent, bias_correction, descend
from varsmooth.ops.linear_cross_entropy import aligned_rows, linear_cross_entropy
from varsmooth.posterior import EmbeddingPosterior
from varsmooth.train.trainer import Trainer


class Part(NamedTuple):
    """Something to time, as often as one likes."""

    name: str
    scheme: str
    call: Call
    floor: floor.Work


def parts_of(load: Workload, device: torch.device) -> Iterator[Part]:
    """Yield the parts of a step of this workload."""
    plain = _trainer(load, VANILLA, device)
    yield Part("recurrent stack", VANILLA, _recurrent_stack(load, plain), floor.recurrent_stack(load))
    yield Part("output loss", VANILLA, _output_loss(load, plain), floor.output_loss(load))
    yield Part("optimiser", VANILLA, _optimiser(plain), floor.optimiser(load))
    for scheme, trainer in {VANILLA: plain, ELEMENT_BATCH: _trainer(load, ELEMENT_BATCH, device)}.items():
        yield Part("table draw", scheme, _table_draw(load, trainer.network.posteriors[1]), floor.table_draw(load))
    for scheme in (VANILLA, WORD, ELEMENT_BATCH, ELEMENT_SEQUENCE):
        trainer = plain if scheme == VANILLA else _trainer(load, scheme, device)
        yield Part("look-up", scheme, _look_up(load, trainer), floor.look_up(load))


def _trainer(load: Workload, scheme: str, device: torch.device) -> Trainer:
    return load.trainer(load.config(scheme, "eager"), device)


def _recurrent_stack(load: Workload, trainer: Trainer) -> Call:
    stack, key = trainer.network.stack, DrawKey(seed=1)
    inputs = _random(load, trainer.device).requires_grad_()
    state = trainer.network.initial_state(load.batch)

    def forward() -> Tensor:
        with torch.autocast(trainer.device.type, torch.bfloat16, enabled=load.precision == "bf16"):
            outputs, _ = stack(inputs, state, key)
        return _tensor(outputs)

    return _forward_and_backward(forward, [inputs, *stack.parameters()])


def _output_loss(load: Workload, trainer: Trainer) -> Call:
    """The drawn table is at hand; the loss of each token counts alike."""
    hidden = _random(load, trainer.device).flatten(0, 1).requires_grad_()
    words = trainer.network.words
    drawn = trainer.network.posteriors[1].sample(DrawKey(seed=1), rows=aligned_rows(words), dtype=hidden.dtype)
    table = drawn.detach().requires_grad_()
    bias, targets = trainer.network.bias, trainer.windows.at(0)[1].reshape(-1)

    def forward() -> Tensor:
        return linear_cross_entropy(hidden, table, bias, targets, words=words)

    return _forward_and_backward(forward, [hidden, table, bias])


def _table_draw(load: Workload, posterior: EmbeddingPosterior) -> Call:
    def forward() -> Tensor:
        return posterior.sample(DrawKey(seed=1), dtype=_dtype(load))

    return _forward_and_backward(forward, [posterior.weight])


def _look_up(load: Workload, trainer: Trainer) -> Call:
    posterior, ids = trainer.network.posteriors[0], trainer.windows.at(0)[0]

    def forward() -> Tensor:
        return posterior.lookup(ids, DrawKey(seed=1), dtype=_dtype(load))

    return _forward_and_backward(forward, [posterior.weight])


def _optimiser(trainer: Trainer) -> Call:
    """The learning rate is 0, so that any number of steps leaves the weights as they are; the work is the same."""
    parameters = [parameter.detach() for parameter in trainer.network.parameters()]
    generator = torch.Generator(trainer.device).manual_seed(0)
    gradients = [torch.randn(p.shape, generator=generator, device=trainer.device) for p in parameters]
    settings = trainer.settings
    descent = Descent.start(parameters, trainer.network.row_weights(), l2=settings.l2, clip=settings.clip)
    lr, correction, average_step = (torch.tensor(x, device=trainer.device) for x in (0.0, bias_correction(1), 0.0))
    return lambda: descend(descent, gradients, lr, correction, average_step)


def _forward_and_backward(forward: Callable[[], Tensor], leaves: list[Tensor]) -> Call:
    """Return a call that runs ``forward`` and sends one gradient, made beforehand, back to all leaves."""
    with torch.no_grad():
        gradient = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), leaves, gradient)


def _random(load: Workload, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(load.window, load.batch, load.size, generator=generator, device=device).to(_dtype(load))


def _dtype(load: Workload) -> torch.dtype:
    return torch.bfloat16 if load.precision == "bf16" else torch.float32


def _tensor(value: object) -> Tensor:
    """Modules are called without types."""
    assert isinstance(value, Tensor)
    return value
