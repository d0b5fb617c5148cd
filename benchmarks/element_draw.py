"""One draw of an element-wise table, in milliseconds beside torch.rand of the same shape. The target: 5 ms on 2 cores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import cyclopts
import numpy as np
import torch

from varsmooth import EmbeddingPosterior, Proposal
from varsmooth.train.environment import environment

WARM_UP = 5


def cases(words: int, width: int, rate: float, device: torch.device) -> dict[str, Callable[[int], object]]:
    """Return what is timed: each is called with the number of the draw."""
    zipf = 1 / torch.arange(1, words + 1, dtype=torch.float64)
    proposal = Proposal(torch.full((words,), rate), (zipf / zipf.sum()).float()).to(device)
    weight = torch.randn(words, width, device=device, requires_grad=True)
    gradient = torch.ones_like(weight)

    def forward(q: EmbeddingPosterior) -> Callable[[int], object]:
        def draw(number: int) -> torch.Tensor:
            with torch.no_grad():
                return q.sample(number)

        return draw

    def both(q: EmbeddingPosterior) -> Callable[[int], object]:
        return lambda number: torch.autograd.grad(q.sample(number), weight, gradient)

    timed: dict[str, Callable[[int], object]] = {"torch.rand": lambda _: torch.rand(words, width, device=device)}
    for name, dropout in (("no dropout", 0.0), ("dropout 0.5", 0.5)):
        q = EmbeddingPosterior(weight, proposal, granularity="element", scope="batch", dropout=dropout)
        timed |= {f"forward, {name}": forward(q), f"forward and backward, {name}": both(q)}
    return timed


def measure(timed: dict[str, Callable[[int], object]], draws: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Time the cases in turn, so that what else the machine does falls on all of them alike."""
    milliseconds: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(-WARM_UP, draws):
        for name, call in timed.items():
            synchronise(device)
            begin = time.perf_counter()
            call(number + WARM_UP)
            synchronise(device)
            if number >= 0:
                milliseconds[name].append(1000 * (time.perf_counter() - begin))
    quantiles = {"median": 50, "p10": 10, "p90": 90}
    return {
        name: {label: round(float(np.percentile(values, share)), 3) for label, share in quantiles.items()}
        for name, values in milliseconds.items()
    }


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(
    *, words: int = 3_843, width: int = 128, rate: float = 0.12, draws: int = 100, threads: int = 2, device: str = "cpu"
) -> None:
    """Time the draws and print milliseconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    place = torch.device(device)
    result = {
        "benchmark": "element_draw",
        "words": words,
        "width": width,
        "rate": rate,
        "draws": draws,
        "milliseconds": measure(cases(words, width, rate, place), draws, place),
        **environment(place),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    cyclopts.run(main)
