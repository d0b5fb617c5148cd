from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from networks_for_tests import WORDS, some_ids, some_network, some_proposal, tiny_config, tiny_corpus, tiny_trainer
from varsmooth.evaluate import DevelopmentSet, development, evaluate, output
from varsmooth.model import RecurrentLanguageModel, RecurrentStack, Smoothing

EOS = 2
IDS = some_ids(101)
SHAPES = [
    (101, 4, 9, 10),
    (101, 16, 128, 64),
    (101, 1, 20, 64),
    (101, 1, 7, 0),
    (101, 7, 3, 0),
    (1, 16, 128, 64),
    (12, 5, 2, 50),
]
GPU_SHAPES = [(5000, 16, 32, 20), (1501, 3, 50, 64), (700, 1, 33, 0), (1, 4, 8, 8)]


def perplexity(network: RecurrentLanguageModel, tokens: int, batch: int, window: int, burn_in: int, predict: str) -> float:
    ids = some_ids(tokens)
    return evaluate(network, ids, EOS, predict=predict, batch=batch, window=window, burn_in=burn_in).perplexity


def development_set(network, tokens, batch, window, burn_in, predict, captured=None) -> DevelopmentSet:
    return DevelopmentSet(
        network, some_ids(tokens), EOS, predict=predict, batch=batch, window=window, burn_in=burn_in, captured=captured
    )


@pytest.mark.parametrize("predict", ["mode", "mean", "mean-input"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_cpu_it_is_exactly_what_evaluate_says(shape, predict):
    network = some_network(output="table")
    dev = development_set(network, *shape, predict)
    assert not dev.captured
    for _ in range(2):
        assert dev.perplexity() == perplexity(network, *shape, predict)
        network.input_table.data.mul_(1.1)
        network.stack.bias[0].data.add_(0.1)
    assert dev.nll().dtype == torch.float64


class Recorded:
    """In the place of a captured graph: every call must find all the tensors that the first one found."""

    made = 0

    def __init__(self, step):
        self.step = step
        Recorded.made += 1

    def __call__(self):
        return self.step()


@pytest.fixture
def _without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(development, "Captured", Recorded)
    Recorded.made = 0


@pytest.mark.usefixtures("_without_graphs")
@pytest.mark.parametrize("predict", ["mode", "mean", "mean-input"])
@pytest.mark.parametrize(("scheme", "cell", "tied"), [("kneser-ney", "lstm", True), ("blank", "gru", False)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_captured_is_the_same_pass(shape, scheme, cell, tied, predict):
    network = some_network(scheme, output="table", cell=cell, tied=tied)
    dev = development_set(network, *shape, predict, captured=True)
    for _ in range(3):
        assert dev.perplexity() == pytest.approx(perplexity(network, *shape, predict), rel=1e-5)
        network.input_table.data.mul_(1.1)
        network.stack.weight_hh[0].data.mul_(0.9)
    assert Recorded.made == 2, "captured once"


@pytest.mark.usefixtures("_without_graphs")
def test_a_captured_pass_uses_the_same_tensors_each_time():
    network = some_network(output="table")
    dev = development_set(network, 101, 4, 9, 10, "mean", captured=True)
    places = []
    for _ in range(2):
        dev.perplexity()
        graphs = dev._graphs
        kept = [graphs.rows, graphs.losses, graphs.inputs, graphs.targets, *graphs.state, *graphs.tables]
        places.append([tensor.data_ptr() for tensor in kept])
    assert places[0] == places[1]


@pytest.mark.usefixtures("_without_graphs")
def test_weights_that_moved_are_captured_anew():
    network = some_network(output="table")
    dev = development_set(network, 101, 4, 9, 10, "mean", captured=True)
    dev.perplexity()
    network.input_table.data = 2 * network.input_table.data
    assert dev.perplexity() == pytest.approx(perplexity(network, 101, 4, 9, 10, "mean"), rel=1e-5)
    assert Recorded.made == 4
    network.double().float()
    assert dev.perplexity() == pytest.approx(perplexity(network, 101, 4, 9, 10, "mean"), rel=1e-5)
    assert Recorded.made == 6
    dev.perplexity()
    assert Recorded.made == 6
    network.smoothing = replace(network.smoothing, proposal=some_proposal(gamma=0.3))
    assert dev.perplexity() == pytest.approx(perplexity(network, 101, 4, 9, 10, "mean"), rel=1e-5)
    assert Recorded.made == 8, "the graph would read the old proposal"


@pytest.mark.usefixtures("_without_graphs")
def test_averaged_weights_are_captured_once():
    """They are exchanged with the weights around every evaluation, so each finds them where the one before it did."""
    trainer = tiny_trainer(tiny_config("vanilla", "train.average=0.9"))
    valid = tiny_corpus().valid
    dev = DevelopmentSet(trainer.network, valid, 0, batch=3, window=16, burn_in=4, captured=True)
    found = []
    for _ in range(3):
        trainer.step()
        trainer.swap_average()
        found.append(dev.perplexity())
        assert found[-1] == pytest.approx(
            evaluate(trainer.network, valid, 0, batch=3, window=16, burn_in=4).perplexity, rel=1e-5
        )
        trainer.swap_average()
    assert Recorded.made == 2
    assert len(set(found)) == 3


@pytest.mark.usefixtures("_without_graphs")
def test_logits_are_held_a_few_at_a_time_in_a_captured_pass_too(monkeypatch):
    network = some_network()
    expected = perplexity(network, 101, 4, 9, 10, "mode")
    monkeypatch.setattr(output, "LOGIT_BYTES", 4 * WORDS * 7)
    assert development_set(network, 101, 4, 9, 10, "mode", captured=True).perplexity() == pytest.approx(expected, rel=1e-6)


def test_a_hopeless_network_has_an_infinite_perplexity():
    network = some_network(method="none")
    network.bias.data[0] = 1e6
    assert DevelopmentSet(network, torch.ones(3, dtype=torch.int64), EOS).perplexity() == math.inf


# On a GPU


def gpu_network(cell: str = "lstm", tied: bool = True, width: int = 64) -> RecurrentLanguageModel:
    small = some_network(output="table")
    stack = RecurrentStack(cell, width, 2)
    smoothing = Smoothing("variational", small.smoothing.proposal, output="table")
    network = RecurrentLanguageModel(WORDS, stack, tied=tied, smoothing=smoothing)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network.cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("predict", ["mode", "mean", "mean-input"])
@pytest.mark.parametrize(("cell", "tied"), [("lstm", True), ("gru", False)])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_graphs_say_what_evaluate_says_on_both_devices(shape, cell, tied, predict):
    network = gpu_network(cell, tied)
    dev = development_set(network, *shape, predict)
    assert dev.captured
    for _ in range(6):
        found = dev.perplexity()
        assert found == pytest.approx(perplexity(network, *shape, predict), rel=1e-5)
        network.input_table.data.mul_(1.02)
        network.stack.weight_hh[0].data.mul_(0.99)
    assert dev._graphs.begin.graph is not None
    network = network.cpu()
    last = perplexity(network, *shape, predict)
    network.input_table.data.div_(1.02)
    network.stack.weight_hh[0].data.div_(0.99)
    assert found != last
    assert found == pytest.approx(perplexity(network, *shape, predict), rel=1e-5), "nothing is rounded to TF32"


@pytest.mark.gpu
def test_nothing_waits_for_the_gpu_but_the_reading_of_the_result():
    network = gpu_network()
    dev = development_set(network, 5000, 16, 32, 20, "mean")
    expected = [float(dev.nll()) for _ in range(5)][-1]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = dev.nll()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.gpu
def test_an_eager_pass_waits_once():
    network = gpu_network()
    dev = development_set(network, 5000, 16, 32, 20, "mean", captured=False)
    expected = float(dev.nll())
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = dev.nll()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.gpu
def test_graphs_work_on_a_stream_of_ones_own():
    """As each run of a fleet has one."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    networks = [gpu_network(), gpu_network("gru")]
    torch.cuda.synchronize()
    devs: list[DevelopmentSet] = []
    for stream, network in zip(streams, networks, strict=True):
        with torch.cuda.stream(stream):
            devs.append(development_set(network, 5000, 16, 32, 20, "mean"))
    for _ in range(6):
        pending: list[Tensor] = []
        for stream, dev in zip(streams, devs, strict=True):
            with torch.cuda.stream(stream):
                pending.append(dev.nll())
        for stream, network, nll in zip(streams, networks, pending, strict=True):
            with torch.cuda.stream(stream):
                assert math.exp(float(nll)) == pytest.approx(perplexity(network, 5000, 16, 32, 20, "mean"), rel=1e-5)


@pytest.mark.gpu
def test_weights_that_moved_are_captured_anew_on_a_gpu():
    network = gpu_network()
    dev = development_set(network, 1501, 3, 50, 64, "mean")
    for _ in range(5):
        dev.perplexity()
    before = dev._graphs
    network.input_table.data = 1.5 * network.input_table.data
    assert dev.perplexity() == pytest.approx(perplexity(network, 1501, 3, 50, 64, "mean"), rel=1e-5)
    assert dev._graphs is not before
