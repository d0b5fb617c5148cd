"""The correctness gate: a speed is worth something only where the results are right, so this runs before anything is timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from varsmooth.bench.findings import Check
from varsmooth.bench.fleet import Fleet
from varsmooth.bench.plan import Plan
from varsmooth.bench.workload import VANILLA, Workload
from varsmooth.config import Config, Engine, Precision
from varsmooth.draws import DrawKey
from varsmooth.model import RecurrentLanguageModel
from varsmooth.ops.backend import reference_only
from varsmooth.train.trainer import Trainer

Results: TypeAlias = dict[str, Tensor]
"""The loss and the gradient of each parameter, by name."""

EXACT = 0.0
KERNELS: dict[Precision, float] = {"fp32": 1e-3, "bf16": 6e-2}
"""How far the results of kernels may be from those of references, relative to the norm of the latter."""
GRAPH: dict[Precision, float] = {"fp32": 1e-3, "bf16": 1e-2}
"""How far the loss of a captured step may be from that of an eager one, relative to the latter, over the steps of the gate."""
SAME_KERNELS = 1e-3
"""Between two runs of the same kernels, whose sums may be taken in another order."""
GAMMA = "smoothing.gamma=0.5"
"""More than any recipe has, so that few words give many replacements."""
LR = 0.0003
"""Up to 512 units a tenth of the recipes', less for more: with theirs two runs of 1,024 units, different by a rounding of the
weights, part by 16% in six steps."""


def run_gate(plan: Plan) -> list[Check]:
    """Return every check that this device allows, for every scheme of the plan."""
    return [check for load in plan.gate for scheme in plan.schemes for check in _checks(plan, load, scheme)]


def _checks(plan: Plan, load: Workload, scheme: str) -> Iterator[Check]:
    if scheme != VANILLA:
        yield from _silent_is_vanilla(load, scheme, plan.device)
    yield _look_up_is_table(load, scheme, plan.device)
    if plan.device.type == "cuda":
        yield from _kernels_are_references(load, scheme, plan.device)
        yield _graph_follows_eager(load, scheme, plan)
        if scheme == VANILLA:
            yield _fleet_is_alone(load, plan)


def _silent_is_vanilla(load: Workload, scheme: str, device: torch.device) -> Iterator[Check]:
    """With gamma 0 nothing is smoothed: the results are those of the plain model, its dropout being of the same scope."""
    config = load.config(scheme, "eager", 1, "smoothing.gamma=0")
    plain = load.trainer(load.config(VANILLA, "eager", 1, f"smoothing.scope={config.smoothing.scope}"), device)
    silent = load.trainer(config, device)
    _copy_weights(plain.network, silent.network)
    expected, found = results(plain), results(silent)
    # A blank has one more row, which is never read.
    cut = {name: value[: len(expected[name])] if value.dim() else value for name, value in found.items()}
    tolerance = EXACT if device.type == "cpu" else SAME_KERNELS
    yield from compare("gamma 0 is vanilla", _subject(load, scheme), cut, expected, tolerance)


def _look_up_is_table(load: Workload, scheme: str, device: torch.device) -> Check:
    """Looking words up finds what a draw of the whole table holds, draw for draw."""
    trainer = load.trainer(_config(load, scheme, "eager"), device)
    q, key = trainer.network.posteriors[0], DrawKey(seed=5, step=3)
    ids = trainer.windows.at(0)[0][:, :3]
    with torch.no_grad():
        tables = [q.sample(key, sequence) for sequence in range(ids.shape[1])]
        expected = torch.stack([table[ids[:, column]] for column, table in enumerate(tables)], 1)
        found = relative_distance(q.lookup(ids, key), expected)
    return Check("look-up is the table's draw", _subject(load, scheme), found, EXACT)


def _kernels_are_references(load: Workload, scheme: str, device: torch.device) -> Iterator[Check]:
    """In both precisions the kernels are held against references in fp32, whose own rounding is small."""
    trainer = load.trainer(_config(load, scheme, "eager"), device)
    with reference_only():
        expected = results(trainer)
    for precision, tolerance in KERNELS.items():
        found = results(trainer, precision)
        yield from compare(f"kernels are references ({precision})", _subject(load, scheme), found, expected, tolerance)


def _graph_follows_eager(load: Workload, scheme: str, plan: Plan) -> Check:
    expected = losses(load.trainer(_config(load, scheme, "eager"), plan.device), plan.gate_steps)
    found = losses(load.trainer(_config(load, scheme, "graph"), plan.device), plan.gate_steps)
    worst = float(((found - expected).abs() / expected.abs()).max())
    return Check(f"graph follows eager for {plan.gate_steps} steps", _subject(load, scheme), worst, GRAPH[load.precision])


def _fleet_is_alone(load: Workload, plan: Plan) -> Check:
    """Runs beside each other, each on a stream of its own, have the losses and gradients that they have alone."""
    configs = [_config(load, VANILLA, "auto", seed) for seed in (1, 2)]
    alone, together = ([load.trainer(config, plan.device) for config in configs] for _ in range(2))
    for trainer in alone:
        Fleet([trainer], plan.device).run(plan.gate_steps)
    Fleet(together, plan.device).run(plan.gate_steps)
    found, expected = (
        torch.tensor([list(trainer.take_means().values()) for trainer in trainers]) for trainers in (together, alone)
    )
    worst = float(((found - expected).abs() / expected.abs()).max())
    return Check("a fleet is its runs alone", _subject(load, VANILLA), worst, GRAPH[load.precision])


def results(trainer: Trainer, precision: Precision = "fp32") -> Results:
    """Return the loss of the first window under one draw, and the gradient of each parameter."""
    network = trainer.network
    inputs, targets = trainer.windows.at(0)
    state = network.initial_state(inputs.shape[1])
    with torch.autocast(trainer.device.type, torch.bfloat16, enabled=precision == "bf16"):
        loss, _ = network.loss(inputs, targets, state, DrawKey(seed=7, step=11))
        nll = loss.per_token.sum(0).mean()
    names, parameters = zip(*network.named_parameters(), strict=True)
    gradients = torch.autograd.grad(nll, parameters)
    return {"loss": nll.detach(), **dict(zip(names, gradients, strict=True))}


def losses(trainer: Trainer, steps: int) -> Tensor:
    """Return the objective of each of the first steps, on the host."""
    return torch.tensor([float(trainer.step().total) for _ in range(steps)])


def compare(name: str, subject: str, found: Results, expected: Results, tolerance: float) -> Iterator[Check]:
    """Return one check for the loss and for each gradient, by name."""
    for part, value in expected.items():
        label = part if part == "loss" else f"gradient of {part}"
        yield Check(name, f"{subject}, {label}", relative_distance(found[part], value), tolerance)


def relative_distance(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference as a share of the norm of what was expected; 0 where both are 0."""
    distance = (found.double() - expected.double()).norm()
    return float(distance / expected.double().norm()) if distance != 0 else 0.0


def _config(load: Workload, scheme: str, engine: Engine, seed: int = 1) -> Config:
    rate = LR * min(1, 512 / load.size)
    return load.config(scheme, engine, seed, f"train.lr={rate}", *([] if scheme == VANILLA else [GAMMA]))


def _subject(load: Workload, scheme: str) -> str:
    return f"{scheme}, {load.size}"


@torch.no_grad()
def _copy_weights(source: RecurrentLanguageModel, target: RecurrentLanguageModel) -> None:
    own = dict(target.named_parameters())
    for name, parameter in source.named_parameters():
        own[name][: len(parameter)].copy_(parameter)
