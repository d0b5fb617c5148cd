"""One LSTM layer as persistent kernels beside cuDNN: forward and backward in microseconds, as replays of CUDA graphs."""

from __future__ import annotations

import argparse
import faulthandler
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from varsmooth.ops.lstm_layer import kernel, lstm_layer, reference
from varsmooth.ops.lstm_layer.blocks import Blocks

CONFIGURATIONS = {
    512: [(16, 16, 4), (16, 16, 8), (8, 32, 8), (16, 32, 8), (32, 16, 8)],
    1024: [(32, 16, 8)],
}
TOLERANCE = 1e-2
SECONDS = 150
Calls: TypeAlias = "tuple[Callable[[], object], Callable[[], object]]"
"""Forward alone, and forward with backward."""


def inputs(steps: int, batch: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return projected, weight, hidden0, memory0 and the gradient of hidden."""
    torch.manual_seed(0)
    projected = torch.randn(steps, batch, 4 * width, device="cuda").to(dtype)
    weight = torch.empty(4 * width, width, device="cuda").uniform_(-(width**-0.5), width**-0.5).to(dtype)
    hidden0, memory0 = torch.randn(2, batch, width, device="cuda").bfloat16().float().unbind()
    gradient = torch.randn(steps, batch, width, device="cuda").to(dtype)
    return projected, weight, hidden0.tanh().to(dtype), memory0, gradient


def results(layer: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype, given: tuple[Tensor, ...]) -> list[Tensor]:
    projected, weight, hidden0, memory0, gradient = (tensor.to(dtype, copy=True) for tensor in given)
    for tensor in (projected, weight):
        tensor.requires_grad_()
    hidden, memory = layer(projected, weight, hidden0, memory0)
    hidden.backward(gradient)
    assert projected.grad is not None
    assert weight.grad is not None
    return [hidden.detach(), memory, projected.grad, weight.grad]


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
    given = inputs(steps, batch, width, torch.bfloat16)
    expected = results(reference.lstm_layer, torch.float64, given)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for rows, units, warps in CONFIGURATIONS[width]:
        blocks, name = Blocks(rows, units, warps), f"{width:5} {rows:4} {units:5} {warps:5}"
        if blocks.programs(batch, width) > processors:
            yield f"{name}   too many programs: {blocks.programs(batch, width)}"
            continue
        try:
            yield f"{name} {blocks.programs(batch, width):8} {figures(blocks, given, expected)}"
        except Exception as error:  # one configuration that does not compile or fit must not hide the others
            yield f"{name}   {type(error).__name__}: {str(error)[:90]}"


def figures(blocks: Blocks, given: tuple[Tensor, ...], expected: list[Tensor]) -> str:
    """Return the largest error, and for both kernels the time as it is, with no waiting, and of one step, as text."""
    found = results(partial(kernel.lstm_layer, blocks=(blocks, blocks)), torch.bfloat16, given)
    wrong = max(errors(found, expected))
    times = [*kernel_times(blocks, given), *kernel_times(blocks, given, full=True), *kernel_times(blocks, given, steps=1)]
    text = " ".join(f"{times[0::2][i]:8.1f} {times[1::2][i]:8.1f}" for i in range(3))
    return f"{text}  {wrong:.1e}{'' if wrong < TOLERANCE else '  WRONG'}"


def kernel_times(
    blocks: Blocks, given: tuple[Tensor, ...], *, steps: int | None = None, full: bool = False
) -> tuple[float, float]:
    """Return the times of forward and backward; with ``full`` counters no program waits (and the results are wrong)."""
    projected, weight, hidden0, memory0, gradient = given
    projected, gradient = projected[:steps], gradient[:steps]
    make = kernel._counters
    if full:
        ready = make(projected, blocks).fill_(2**20)
        kernel._counters = lambda *_: ready
    try:
        _, memory, gates = kernel.run_forward(projected, weight, hidden0, memory0, blocks, save=True)
        forward = replay_us(lambda: kernel.run_forward(projected, weight, hidden0, memory0, blocks, save=True))
        backward = replay_us(lambda: kernel.run_backward(gradient, weight, memory0, memory, gates, blocks))
    finally:
        kernel._counters = make
    return forward, backward


def stack(layers: int, width: int, batch: int, steps: int) -> Calls:
    """Return calls of several layers of this kernel, with their projections: forward alone, and with backward."""
    x = torch.randn(steps, batch, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weights = [torch.empty(4 * width, width, device="cuda").uniform_(-0.04, 0.04).bfloat16() for _ in range(2 * layers)]
    bias = torch.zeros(4 * width, device="cuda", dtype=torch.bfloat16)
    state = torch.zeros(batch, width, device="cuda")
    gradient = torch.randn_like(x)
    for weight in [*weights, bias]:
        weight.requires_grad_()

    def forward() -> Tensor:
        hidden = x
        for ih, hh in zip(weights[::2], weights[1::2], strict=True):
            hidden, _ = lstm_layer(F.linear(hidden, ih, bias), hh, state.bfloat16(), state)
        return hidden

    return forward, lambda: torch.autograd.grad(forward(), [x, *weights, bias], gradient)


def cudnn(layers: int, width: int, batch: int, steps: int, dtype: torch.dtype) -> Calls:
    module = torch.nn.LSTM(width, width, layers, device="cuda", dtype=dtype)
    x = torch.randn(steps, batch, width, device="cuda", dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(x)
    leaves = [x, *module.parameters()]
    return lambda: module(x)[0], lambda: torch.autograd.grad(module(x)[0], leaves, gradient)


def whole_layers(layers: int, width: int, batch: int, steps: int) -> Iterator[str]:
    """Time this kernel beside cuDNN, projections and all gradients included."""
    calls = {"this kernel, bf16": stack(layers, width, batch, steps)}
    for dtype in (torch.bfloat16, torch.float16):
        calls[f"cuDNN, {str(dtype)[6:]}"] = cudnn(layers, width, batch, steps, dtype)
    for name, (forward, both) in calls.items():
        yield f"{width:5} units, {layers} layers, {name:22} {replay_us(forward):18.1f} {replay_us(both):20.1f}"


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
    print("                               as it is         without waiting   one step")
    print("width rows units warps programs   forward backward  forward backward  forward backward  error")
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
