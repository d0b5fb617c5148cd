from __future__ import annotations

import pytest
import torch

from varsmooth.bench.plan import CPU_WORDS, GROUPS, PENN, WIKITEXT, plan_for
from varsmooth.bench.workload import SCHEMES, Workload, zipfian_ids
from varsmooth.errors import InputError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_words_follow_zipf() -> None:
    ids = zipfian_ids(50, 200_000)
    share = torch.bincount(ids, minlength=50) / ids.numel()
    expected = 1 / torch.arange(1, 51)
    assert share.numel() == 50
    assert torch.allclose(share, expected / expected.sum(), atol=5e-3)
    assert torch.equal(ids, zipfian_ids(50, 200_000))
    assert not torch.equal(ids, zipfian_ids(50, 200_000, seed=1))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_the_shape_that_was_asked_for(scheme: str) -> None:
    load = Workload(16, 101, batch=3, window=4, precision="fp32", tokens=500)
    trainer = load.trainer(load.config(scheme, "eager", 5), CPU)
    assert trainer.network.stack.width == 16
    assert trainer.network.words == 101
    assert (trainer.settings.batch, trainer.settings.window, trainer.settings.seed) == (3, 4, 5)
    assert torch.isfinite(trainer.step().total)


def test_schemes_differ_in_what_they_smooth() -> None:
    load = Workload(16, 101)
    found = {
        (c.method, c.scheme, c.granularity, c.scope, c.output) for c in (load.config(s, "eager").smoothing for s in SCHEMES)
    }
    assert len(found) == len(SCHEMES)
    assert ("variational", "kneser-ney", "word", "sequence", "target") in found
    assert ("variational", "kneser-ney", "element", "batch", "table") in found
    assert ("variational", "kneser-ney", "element", "sequence", "table") in found
    assert ("noising", "kneser-ney", "word", "sequence", "none") in found


def test_trainers_of_a_workload_share_one_text() -> None:
    load = Workload(8, 101, batch=3, window=4, precision="fp32", tokens=500)
    first, second = (load.trainer(load.config("vanilla", "eager"), CPU) for _ in range(2))
    assert first.windows.ids.data_ptr() == second.windows.ids.data_ptr()


def test_the_plan_of_a_gpu_is_the_whole_of_it() -> None:
    plan = plan_for(GPU)
    assert plan.groups == GROUPS
    assert {(load.size, load.words) for load in plan.workloads} == {(s, w) for s in (512, 1024) for w in (PENN, WIKITEXT)}
    assert {(load.batch, load.window, load.precision) for load in plan.workloads} == {(64, 35, "bf16")}
    assert plan.schemes == tuple(SCHEMES)
    assert plan.fleets == (1, 2, 4, 8)
    assert [load.size for load in plan.gate] == [512, 1024]


def test_the_plan_of_a_cpu_is_small() -> None:
    plan = plan_for(CPU)
    assert plan.groups == ("schemes",)
    assert [(load.size, load.words, load.batch, load.window) for load in plan.workloads] == [
        (64, CPU_WORDS, 16, 35),
        (128, CPU_WORDS, 16, 35),
    ]
    assert len(plan.schemes) == 4


def test_a_plan_can_be_cut() -> None:
    plan = plan_for(GPU, ("parts", "eager"), (256,), quick=True)
    assert plan.groups == ("parts", "eager")
    assert {load.size for load in (*plan.workloads, *plan.gate)} == {256}
    assert (plan.repeats, plan.calls) == (3, 15)
    assert plan_for(GPU).repeats == 9


@pytest.mark.parametrize(
    ("device", "groups", "sizes", "words"),
    [
        (GPU, ("part",), (), ["--only", "'part'", "did you mean 'parts'"]),
        (CPU, ("fleet",), (), ["--only fleet needs a GPU"]),
        (GPU, (), (512, 0), ["--sizes", "got 0"]),
    ],
)
def test_what_makes_no_sense_is_refused(
    device: torch.device, groups: tuple[str, ...], sizes: tuple[int, ...], words: list[str]
) -> None:
    with pytest.raises(InputError) as refused:
        plan_for(device, groups, sizes)
    assert all(word in str(refused.value) for word in words)
