"""How fast two runs part whose weights differ by one rounding of bf16: what a comparison of engines has to allow for."""

from __future__ import annotations

import json

import cyclopts
import torch

from varsmooth.bench.workload import VANILLA, Workload
from varsmooth.train.environment import environment

ROUNDING = 2e-3


def losses(load: Workload, lr: float, batch: int, steps: int, *, rounded: bool) -> torch.Tensor:
    config = load.config(VANILLA, "eager", 1, f"train.lr={lr}", f"train.batch={batch}")
    trainer = load.trainer(config, torch.device("cpu"))
    if rounded:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in trainer.network.parameters():
                parameter.mul_(1 + ROUNDING * torch.randn(parameter.shape, generator=generator))
    return torch.tensor([float(trainer.step().total) for _ in range(steps)])


def main(*, sizes: list[int] | None = None, words: int = 1_003, batch: int = 32, steps: int = 20, threads: int = 2) -> None:
    """Print the greatest relative difference of the loss over the first steps, in float32 on the CPU."""
    torch.set_num_threads(threads)
    apart = {}
    for size in sizes or [512, 1024]:
        load = Workload(size, words, precision="fp32", tokens=200_000)
        for lr in (0.003, 0.0003):
            one, other = (losses(load, lr, batch, steps, rounded=rounded) for rounded in (False, True))
            apart[f"{size} units, learning rate {lr}"] = round(float(((one - other).abs() / one).max()), 5)
    result = {
        "benchmark": "rounding",
        "words": words,
        "batch": batch,
        "steps": steps,
        "seed": 1,
        "relative_change_of_weights": ROUNDING,
        "greatest_relative_difference_of_the_loss": apart,
        **environment(torch.device("cpu")),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    cyclopts.run(main)
