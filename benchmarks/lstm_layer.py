"""Layers of an LSTM as persistent kernels beside cuDNN: forward and backward in microseconds, as replays of CUDA graphs."""

from __future__ import annotations

import argparse
import faulthandler
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from varsmooth.ops.lstm_layer import Weights, kernel, lstm_layers, reference
from varsmooth.ops.lstm_layer.blocks import Blocks

CONFIGURATIONS = {512: [(8, 32, 8), (16, 16, 8)], 1024: [(32, 16, 8)]}
TOLERANCE = 1e-2
SECONDS = 100
Calls: TypeAlias = "tuple[Callable[[], object], Callable[[], object]]"
"""Forward alone, and forward with backward."""


class Case:
    """One layer of ``width`` units over a window, in bf16, and a gradient of its outputs."""

    def __init__(self, width: int, batch: int, steps: int) -> None:
        torch.manual_seed(0)
        bound = width**-0.5
        matrices = [torch.empty(4 * width, width, device="cuda").uniform_(-bound, bound) for _ in range(2)]
        self.inputs, self.gradient = torch.randn(2, steps, batch, width, device="cuda").bfloat16().unbind()
        self.weights = Weights(*(part.bfloat16() for part in (*matrices, torch.randn(4 * width, device="cuda"))))
        self.state = torch.randn(1, batch, width, device="cuda").tanh(), torch.randn(1, batch, width, device="cuda")

    def results(self, run: Callable[..., Any], dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in (self.inputs, *self.weights)]
        outputs, state = run([Weights(*leaves[1:])], leaves[0], *self.state)
        return [outputs.detach(), *state, *torch.autograd.grad(outputs, leaves, self.gradient.to(dtype))]


def errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    pairs = zip(found, expected, strict=True)
    return [float((one.double() - other.double()).norm() / other.double().norm()) for one, other in pairs]


def replay_us(call: Callable[[], object], times: int = 50) -> float:
    """Return the median time of a graph that holds one call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    taken = []
    for _ in range(times + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(1000 * begin.elapsed_time(end))
    return statistics.median(taken[5:])


def configurations(width: int, batch: int, steps: int) -> Iterator[str]:
    """Check and time each configuration; one row each."""
    case = Case(width, batch, steps)
    expected = case.results(reference.lstm_layers, torch.float64)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for rows, units, warps in CONFIGURATIONS[width]:
        blocks, name = Blocks(rows, units, warps), f"{width:5} {rows:4} {units:5} {warps:5}"
        if blocks.programs(batch, width) > processors:
            yield f"{name}   too many programs: {blocks.programs(batch, width)}"
            continue
        try:
            yield f"{name} {blocks.programs(batch, width):8} {figures(blocks, case, expected)}"
        except Exception as error:  # one configuration that does not compile or fit must not hide the others
            yield f"{name}   {type(error).__name__}: {str(error)[:90]}"


def figures(blocks: Blocks, case: Case, expected: list[Tensor]) -> str:
    """Return, for both kernels, the time as it is, with no waiting, and of one step, and the largest error, as text."""
    wrong = max(errors(case.results(partial(kernel.lstm_layers, blocks=blocks), torch.bfloat16), expected))
    pairs = [kernel_times(blocks, case), kernel_times(blocks, case, full=True), kernel_times(blocks, case, steps=1)]
    text = " ".join(f"{forward:9.1f} {backward:8.1f}" for forward, backward in pairs)
    return f"{text}  {wrong:.1e}{'' if wrong < TOLERANCE else '  WRONG'}"


def kernel_times(blocks: Blocks, case: Case, *, steps: int | None = None, full: bool = False) -> tuple[float, float]:
    """Return the times of forward and backward; with ``full`` counters no program waits (and the results are wrong)."""
    hidden0, memory0 = (part[0] for part in case.state)
    gradient, hh = case.gradient[:steps], case.weights.hh
    projected = torch.nn.functional.linear(case.inputs[:steps], case.weights.ih, case.weights.bias)
    steps, batch, width = gradient.shape
    counters = kernel.new_counters(blocks, steps, batch, width, 1, hh.device)[0]
    goes_out = kernel.State(torch.empty_like(memory0), torch.empty_like(memory0))
    plan = kernel.Plan(blocks, kernel.State(hidden0, memory0), goes_out, counters)

    def reset() -> None:
        counters.fill_(2**20 if full else 0)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        reset()
        return kernel.run_forward(projected, hh, plan, save=True)

    _, memory, gates = forward()

    def backward() -> object:
        reset()
        return kernel.run_backward(gradient, hh, memory0, memory, gates, blocks, counters[1])

    return replay_us(forward), replay_us(backward)


def stack(layers: int, width: int, batch: int, steps: int) -> Calls:
    """Return calls of several layers of this kernel, with their projections: forward alone, and with backward."""
    cases = [Case(width, batch, steps) for _ in range(layers)]
    weights = [Weights(*(tensor.requires_grad_() for tensor in case.weights)) for case in cases]
    state = [torch.cat(parts) for parts in zip(*(case.state for case in cases), strict=True)]
    inputs, gradient = cases[0].inputs.requires_grad_(), cases[0].gradient
    leaves = [inputs, *(tensor for layer in weights for tensor in layer)]

    def forward() -> Tensor:
        return lstm_layers(weights, inputs, *state)[0]

    return forward, lambda: torch.autograd.grad(forward(), leaves, gradient)


def cudnn(layers: int, width: int, batch: int, steps: int) -> Calls:
    module = torch.nn.LSTM(width, width, layers, device="cuda", dtype=torch.bfloat16)
    inputs = torch.randn(steps, batch, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(inputs)
    leaves = [inputs, *module.parameters()]
    return lambda: module(inputs)[0], lambda: torch.autograd.grad(module(inputs)[0], leaves, gradient)


def whole_layers(layers: int, width: int, batch: int, steps: int) -> Iterator[str]:
    """Time this kernel beside cuDNN, projections and all gradients included."""
    sizes = (layers, width, batch, steps)
    for name, (forward, both) in {"this kernel": stack(*sizes), "cuDNN": cudnn(*sizes)}.items():
        yield f"{width:5} units, {layers} layers, {name:12} {replay_us(forward):28.1f} {replay_us(both):20.1f}"


def main() -> None:
    """Check, then time, and print one table for the kernels alone and one for whole layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--width", type=int, nargs="+", default=[512, 1024], choices=list(CONFIGURATIONS))
    options = parser.parse_args()
    sizes = (options.batch, options.steps)
    faulthandler.dump_traceback_later(SECONDS, exit=True)  # programs that wait for ever would hold the GPU
    began = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch and window {sizes}, bf16, microseconds")
    print("                                as it is           without waiting    one step")
    print("width rows units warps programs   forward backward   forward backward   forward backward  error")
    for width in options.width:
        for row in configurations(width, *sizes):
            print(row, flush=True)
    print("\nwhole layers, with projections and weight gradients     forward   forward + backward")
    for width in options.width:
        for row in (row for layers in (1, 2) for row in whole_layers(layers, width, *sizes)):
            print(row, flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
