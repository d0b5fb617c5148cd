from __future__ import annotations

from dataclasses import replace

import pytest

from varsmooth.bench import floor
from varsmooth.bench.workload import Workload
from varsmooth.config import override
from varsmooth.recipe import load_recipe
from varsmooth.train.build import build_network

PENN_512 = Workload(512, 10_000)
# What was counted before the start, for 512 and 1024 units on the Penn Treebank and 512 on WikiText-2.
COUNTED_AT_THE_START = {PENN_512: 0.26, Workload(1024, 10_000): 0.68, Workload(512, 33_278): 0.64}


@pytest.mark.parametrize(("load", "counted"), COUNTED_AT_THE_START.items(), ids=str)
def test_the_step_is_near_the_floor_counted_at_the_start(load: Workload, counted: float) -> None:
    """That count had two moments in the optimiser, the logits four times, and no other bytes; ours has tables and weights."""
    products = floor.Work(floor.recurrent_stack(load).flops + floor.output_loss(load).flops)
    logits = load.batch * load.window * load.words
    stock = products + floor.Work(bytes=28 * floor.parameters(load) + 4 * 2 * logits)
    assert round(stock.milliseconds, 2) == counted
    assert floor.step(load).milliseconds == pytest.approx(counted, rel=0.05)


def test_hand_counted_numbers_of_512_units_on_the_penn_treebank() -> None:
    # 2240 tokens; 2 layers of two 2048 x 512 matrices; 10,000 x 512 table; 22.4 million logits.
    assert floor.recurrent_stack(PENN_512) == floor.Work(3 * 2 * 2240 * 4_194_304, 4_194_304 * 8)
    assert floor.output_loss(PENN_512) == floor.Work(3 * 2 * 22_400_000 * 512, 22_400_000 * 6 + 5_120_000 * 8)
    assert floor.look_up(PENN_512) == floor.Work(0, 2240 * 512 * 14)
    assert floor.table_draw(PENN_512) == floor.Work(0, 5_120_000 * 12)
    assert floor.parameters(PENN_512) == 5_120_000 + 10_000 + 4_194_304 + 4_096
    assert floor.optimiser(PENN_512) == floor.Work(0, 9_328_400 * 26)
    assert floor.output_loss(PENN_512).milliseconds == pytest.approx(0.0871 + 0.0408, abs=1e-4)


def test_work_is_products_then_bytes() -> None:
    assert floor.Work(790e9, 4.3e9).milliseconds == pytest.approx(1 + 1)
    assert floor.Work(1, 2) + floor.Work(10, 20) == floor.Work(11, 22)


def test_parameters_are_those_of_the_network() -> None:
    load = replace(PENN_512, size=12, words=37)
    config = override(load_recipe("vanilla"), ["model.hidden=12"])
    network = build_network(config, load.words, None)
    assert floor.parameters(load) == sum(parameter.numel() for parameter in network.parameters())
