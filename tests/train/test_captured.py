"""The step as a CUDA graph, against the eager step; only where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from networks_for_tests import tiny_config, tiny_corpus
from varsmooth import Counts
from varsmooth.config import Config
from varsmooth.recipe import recipe_names
from varsmooth.train.build import build_network, build_proposal
from varsmooth.train.captured import WARM_UP, Captured
from varsmooth.train.trainer import Trainer

pytestmark = pytest.mark.gpu
ROWS = [name for name in recipe_names() if "/" not in name]
WIDE = ("model.hidden=32", "train.batch=8", "train.window=11", "train.steps=400", "train.lr=0.002", "dropout.tables=0.3")


def gpu_trainer(config: Config) -> Trainer:
    corpus = tiny_corpus(3000)
    proposal = build_proposal(config, Counts.from_ids(corpus.train, len(corpus.vocab)))
    return Trainer(build_network(config, len(corpus.vocab), proposal), corpus.train, config.train, torch.device("cuda"))


def losses(config: Config, steps: int) -> torch.Tensor:
    trainer = gpu_trainer(config)
    found = torch.stack([trainer.step().total.clone() for _ in range(steps)])
    trainer.check_finite()
    return found.cpu()


@pytest.mark.parametrize("row", ROWS)
def test_graph_and_eager_follow_the_same_loss_for_200_steps_in_single_precision(row):
    """Within 0.1%: sums are taken in another order, and what differs in the last bit grows from step to step."""
    graph, eager = (losses(tiny_config(row, *WIDE, f"train.engine={engine}"), 200) for engine in ("graph", "eager"))
    torch.testing.assert_close(graph, eager, rtol=1e-3, atol=0)
    assert graph[-20:].mean() < graph[:20].mean()


@pytest.mark.parametrize("row", ["vanilla", "noising-kneser-ney", "smoothing-kneser-ney", "element-kneser-ney"])
def test_graph_and_eager_stay_together_for_200_steps_in_bf16(row):
    settings = [*WIDE, "train.precision=bf16"]
    graph, eager = (losses(tiny_config(row, *settings, f"train.engine={engine}"), 200) for engine in ("graph", "eager"))
    torch.testing.assert_close(graph, eager, rtol=2e-2, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        ["model.cell=gru"],
        ["model.tied=false"],
        ["dropout.recurrent_kind=update"],
        ["dropout.recurrent_kind=dropconnect"],
        ["dropout.recurrent_scope=sequence"],
        ["smoothing.variance=0.01", "dropout.recurrent_variance=0.001"],
        ["smoothing.output=table", "smoothing.scope=batch", "smoothing.tie=shared-draw"],
        ["dropout.tables_granularity=word"],
        ["dropout.kind=activation"],
        ["train.average=0.9"],
        ["train.schedule=plateau"],
        ["smoothing.scope=position"],
        ["model.layers=3"],
    ],
    ids=str,
)
def test_every_choice_can_be_captured(changes):
    settings = [*WIDE, *changes]
    graph, eager = (
        losses(tiny_config("smoothing-kneser-ney", *settings, f"train.engine={engine}"), 12) for engine in ("graph", "eager")
    )
    torch.testing.assert_close(graph, eager, rtol=1e-3, atol=0)


@pytest.mark.parametrize("row", ["vanilla", "element-kneser-ney", "smoothing-kneser-ney", "noising-kneser-ney"])
def test_a_captured_step_never_waits_for_the_card(row):
    trainer = gpu_trainer(tiny_config(row, *WIDE, "train.precision=bf16"))
    for _ in range(WARM_UP + 1):
        trainer.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_even_before_capture_no_step_waits():
    trainer = gpu_trainer(tiny_config("element-kneser-ney", *WIDE, "train.precision=bf16"))
    trainer.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("row", ["vanilla", "element-kneser-ney", "smoothing-kneser-ney"])
@pytest.mark.parametrize("stop", [2, 40])
def test_a_resumed_run_follows_the_uninterrupted_one(row, stop):
    config = tiny_config(row, *WIDE, "train.precision=bf16", "train.average=0.9")
    whole, first, second = (gpu_trainer(config) for _ in range(3))
    expected = torch.stack([whole.step().total.clone() for _ in range(120)])
    for _ in range(stop):
        first.step()
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()}, first.meta())
    found = torch.stack([second.step().total.clone() for _ in range(stop, 120)])
    torch.testing.assert_close(found, expected[stop:], rtol=5e-3, atol=0)
    assert second.progress == whole.progress


def test_a_lower_rate_after_a_plateau_reaches_the_captured_step():
    trainer = gpu_trainer(tiny_config("vanilla", *WIDE, "train.schedule=plateau", "train.plateau_factor=1e-9"))
    for _ in range(20):
        trainer.step()
    for perplexity in (10.0, 11.0, 11.0, 11.0, 11.0):
        trainer.observe(perplexity)
    assert trainer.progress.lr_factor < 1e-8
    before = trainer.network.input_table.detach().clone()
    for _ in range(5):
        trainer.step()
    torch.testing.assert_close(trainer.network.input_table.detach(), before, rtol=0, atol=1e-6)


def test_a_gradient_that_is_not_finite_changes_no_weight_and_is_named():
    trainer = gpu_trainer(tiny_config("vanilla", *WIDE))
    for _ in range(10):
        trainer.step()
    trainer.network.bias.data[0] = float("nan")
    before = trainer.network.input_table.detach().clone()
    for _ in range(3):
        trainer.step()
    assert torch.equal(trainer.network.input_table.detach(), before)
    with pytest.raises(ValueError, match="not finite at step 11"):
        trainer.check_finite()


def long_product() -> Captured[torch.Tensor]:
    """A captured step of products so long and thin that cuBLAS splits them, and adds up the parts in a workspace."""
    left, right = (torch.randn(32768, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    captured = Captured(lambda: torch.stack([left.t() @ right for _ in range(20)]).sum(0))
    for _ in range(WARM_UP + 1):
        captured()
    return captured


def test_graphs_share_no_workspace_however_many_there_are():
    """More than torch has streams: those that run side by side find what they find alone, also when others have ended."""
    torch.manual_seed(1)
    graphs = [long_product() for _ in range(36)]
    alone = [graph().clone() for graph in graphs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = [(first, second) for second in (1, 32, 33, 35) for first in (0, second - 32) if 0 <= first < second]
    for pair in pairs:
        for _ in range(10):
            for stream, number in zip(streams, pair, strict=True):
                with torch.cuda.stream(stream):
                    graphs[number]()
        torch.cuda.synchronize()
        for number in pair:
            assert torch.equal(graphs[number].result, alone[number]), f"{number} of {pair}"
    del graphs[4:]
    torch.cuda.empty_cache()
    litter = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(64)]
    assert all(torch.equal(graph(), expected) for graph, expected in zip(graphs, alone[:4], strict=True))
    assert len(litter) == 64
