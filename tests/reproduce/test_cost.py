from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from varsmooth import InputError
from varsmooth.bench import run_bench
from varsmooth.bench.findings import Check
from varsmooth.bench.learning import Effort
from varsmooth.bench.plan import PENN
from varsmooth.bench.targets import STEP
from varsmooth.bench.workload import VANILLA, WORD, Workload
from varsmooth.fleet.clock import Clock
from varsmooth.report.runs import load_run
from varsmooth.reproduce import cost
from varsmooth.reproduce.cost import Cost, cost_curves, cost_plans, cost_table, measure_cost, read_cost
from varsmooth.reproduce.pace import milliseconds, scheme_of
from varsmooth.reproduce.page import build_page
from varsmooth.train.environment import environment

PNG = b"\x89PNG\r\n\x1a\n"
SHORT = Effort(steps=2, every=2, tokens=2_000, held_out=200)


@pytest.fixture
def measured_once(monkeypatch):
    """What a bench finds is kept: to measure takes seconds, and here it matters what is measured, not how often."""
    found = {}

    def bench(plan, observe):
        key = (tuple(plan.workloads), tuple(plan.gate))
        if key not in found:
            found[key] = run_bench(plan, observe)
        return found[key]

    monkeypatch.setattr("varsmooth.reproduce.cost.run_bench", bench)


def test_cost_is_measured_once_and_shown_with_its_floor(results, measured_once):
    loads = [Workload(size, 211, batch=4, window=5, precision="fp32", tokens=4_000) for size in (8, 16)]
    told: list[str] = []
    plans = cost_plans(torch.device("cpu"), loads)
    plans = [replace(plan, calls=1, repeats=2, warm_up=1, gate_steps=2, gate=plan.workloads, learning=SHORT) for plan in plans]
    assert len(measure_cost(results, plans, lambda name, *_: told.append(name))) == 2
    assert measure_cost(results, plans, lambda *_: None) == []
    (results / "cost.csv").unlink()
    again = measure_cost(results, [plans[0], replace(plans[0], workloads=loads[1:])], lambda *_: None)
    assert [bool(found.checks) for found in again] == [True, True]
    (results / "cost.csv").unlink()
    wider = replace(loads[0], words=212)
    again = measure_cost(results, [plans[0], replace(plans[0], workloads=(wider,))], lambda *_: None)
    assert [bool(found.checks) for found in again] == [True, False], "one check for each size"
    (results / "cost.csv").unlink()
    measure_cost(results, plans, lambda *_: None)
    found = cost_table(results).text
    told, _, *lines = found.splitlines()
    assert len(lines) == 4, "memory is that of a GPU, and in two steps nothing is learned"
    assert lines[2].startswith("| 8 | 211 | ")
    name = environment(torch.device("cpu"))["hardware"]["name"]
    assert told == f"A training step on one {name}, ms:"
    other = (results / "cost.csv").read_text().replace(name, "a card")
    (results / "cost.csv").write_text(other)
    assert len(measure_cost(results, plans, lambda *_: None)) == 2, "what was measured elsewhere says nothing of this machine"


def test_cost_curves_lie_over_one_thing_at_a_time(results):
    results.mkdir()
    header = "quantity,size,vocabulary,scheme,median,floor,device\n"
    rows = ["step,512,10000,vanilla,0.7,0.3", "step,512,33278,vanilla,1.2,0.6", "step,1024,10000,vanilla,1.5,0.7"]
    rows += ["step,512,10000,word KN,0.8,0.3", "peak memory,512,10000,vanilla,280,"]
    rows += ["peak memory,512,10000,element KN batch,290,"]
    rows += ["steps to a perplexity,512,10000,vanilla,1500,", "steps to a perplexity,512,10000,element KN batch,900,"]
    rows = [
        "step,512,10000,vanilla,90,,a processor",
        "step,512,10000,vanilla,0.9,0.3,a card",
        *(f"{row},a card" for row in rows),
    ]
    (results / "cost.csv").write_text(header + "\n".join(rows) + "\n")
    over_words = cost_curves(results, "words")
    assert [(place, height.mean) for place, height in over_words["vanilla"]] == [(PENN, 0.7), (33_278, 1.2)]
    assert [(place, height.mean) for place, height in over_words["counted floor"]] == [(PENN, 0.3), (33_278, 0.6)]
    assert list(over_words)[-1] == "counted floor"
    assert [place for place, _ in cost_curves(results, "size")["vanilla"]] == [512, 1024]
    page = build_page(results)
    assert set(page.pictures) == {"cost-words.png", "cost-size.png"}
    assert page.pictures["cost-words.png"]().startswith(PNG)
    assert "| 512 | 10,000 | 0.70 | 0.80 | - | - | 0.30 |\n" in page.parts["cost"]
    assert "| 512 | 10,000 | 280 | - | 290 | - |" in page.parts["cost"]
    title, table = page.parts["cost"].split("\n\n")[-2:]
    assert title == "Steps, and their time, to 3 times the best possible perplexity of made-up text:"
    assert table.splitlines()[2:] == ["| 512 | 10,000 | 1,500 (1.1 s) | - | - | - |"], "of what has a step that was timed"
    (results / "cost.csv").write_text("quantity\nstep\n")
    with pytest.raises(InputError, match=r"cost\.csv: not the rows of a bench"):
        cost_table(results)


@pytest.fixture
def tiny_costs(monkeypatch):
    """A machine that has a GPU, as far as the command can tell, and two small shapes to measure."""
    loads = [Workload(size, 211, batch=4, window=5, precision="fp32", tokens=4_000) for size in (8, 16)]
    plans = [
        replace(plan, calls=1, repeats=2, warm_up=1, gate_steps=2, gate=plan.workloads, learning=SHORT)
        for plan in cost_plans(torch.device("cpu"), loads)
    ]
    monkeypatch.setattr("varsmooth.cli.reproducing.cost_plans", lambda _: plans)
    monkeypatch.setattr("varsmooth.cli.reproducing.resolve_device", lambda _: torch.device("cuda"))


def test_cost_stops_when_the_time_is_up_and_the_same_command_goes_on(run, results, tmp_path, tiny_costs, monkeypatch):
    command = ["reproduce", "ptb", "--experiment", "cost", "--results", results, "--out", tmp_path / "out"]
    names = ["cost of 8 units with 211 words", "cost of 16 units with 211 words"]
    assert json.loads(run(*command, "--dry-run", "--json")[1]) == {"planned": 2, "missing": names, "steps": 0, "waiting": 0}
    now, bench = [0.0], cost.run_bench

    def after(seconds):
        """Bench, and have the clock say that it took so long."""

        def timed(plan, observe):
            now[0] += seconds
            return replace(bench(plan, observe), seconds=seconds)

        return timed

    monkeypatch.setattr(cost, "Clock", lambda limit: Clock(limit, lambda: now[0]))
    monkeypatch.setattr(cost, "run_bench", after(20.0))
    # Of the second shape, which is three times as much, a minute is to be expected: neither --minutes nor --within has that.
    status, _, told = run(*command, "--minutes", 1, "--within", 9)
    assert (status, "the time is up, 1 runs are left; the same command goes on" in told) == (0, True), told
    assert run(*command, "--dry-run")[1].splitlines() == names[1:]
    assert run(*command, "--minutes", 1)[0] == 0, "the first of a call is begun in any case"
    assert run(*command, "--dry-run")[1] == ""


def test_cost_needs_a_gpu_and_takes_no_rows(run, results, tmp_path):
    command = ["reproduce", "ptb", "--experiment", "cost", "--results", results, "--out", tmp_path / "out"]
    if not torch.cuda.is_available():
        status, _, told = run(*command)
        assert (status, "--experiment cost needs a GPU" in told) == (2, True)
    for flags, flag in ((["--rows", "vanilla"], "rows"), (["--seeds", "1"], "seeds"), (["--budget", "quick"], "budget")):
        status, _, told = run(*command, *flags)
        assert (status, f"--experiment cost does not go with --{flag}" in told) == (2, True)


def test_what_is_measured_of_cost():
    plans = cost_plans(torch.device("cuda"))
    shapes = [(load.size, load.words) for plan in plans for load in plan.workloads]
    over_words = {(512, words) for words in (10_000, 33_278, 100_000, 267_735)}
    assert {*over_words, (1024, 10_000), (1024, 33_278), (2048, 10_000)} == set(shapes)
    assert len(shapes) == 7
    assert all(plan.memory_of == plan.schemes for plan in plans)
    assert all(plan.groups == ("schemes", "memory", "learning") for plan in plans)


def test_the_time_to_a_perplexity_is_that_of_its_steps_on_a_card_that_has_nothing_else(results, keep):
    keep("vanilla", 70.0)  # valid 74, at step 10
    keep("element-kneser-ney", 90.0)
    assert "| Penn Treebank | 512 | 1,000 | 80.0 | 10 | - | - (0 of 1 reach it) |" in build_page(results).parts["cost/time"]
    header = "quantity,size,vocabulary,scheme,median,floor,device\n"
    (results / "cost.csv").write_text(header + "step,512,900,vanilla,100,,a card\nstep,512,1100,vanilla,300,,a card\n")
    assert "| 512 | 1,000 | 80.0 | 10 (2.0 s) | - |" in build_page(results).parts["cost/time"], "half way between two"
    (results / "cost.csv").write_text(header + "step,512,1100,vanilla,300,,a card\nstep,1024,1000,vanilla,300,,a card\n")
    assert "| 512 | 1,000 | 80.0 | 10 | - |" in build_page(results).parts["cost/time"], "not measured at this size"


@pytest.mark.parametrize(
    ("row", "scheme"),
    [
        ("vanilla", "vanilla"),
        ("smoothing-kneser-ney", "word KN"),
        ("element-kneser-ney", "element KN sequence"),
        ("noising-kneser-ney", None),
        ("smoothing-blank", None),
    ],
)
def test_the_scheme_of_the_bench_that_a_run_is(keep, row, scheme):
    run = load_run(keep(row, 70.0))
    assert scheme_of(run) == scheme


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        ({"smoothing": {"scope": "batch"}}, "element KN batch"),
        ({"smoothing": {"scope": "position"}}, None),
        ({"dropout": {"kind": "activation"}}, None),
        ({"model": {"tied": False}}, None),
    ],
)
def test_what_the_bench_does_not_measure_has_no_scheme(keep, config, scheme):
    assert scheme_of(load_run(keep("element-kneser-ney", 70.0, config=config))) == scheme


@pytest.mark.parametrize(("words", "expected"), [(400, None), (500, 1.0), (1000, 1.5), (1500, 2.0), (1700, 2.6), (2001, None)])
def test_a_step_is_guessed_between_vocabularies_that_were_measured_and_not_beyond(keep, words, expected):
    run = load_run(keep("vanilla", 70.0, data={"vocab_size": words}))
    costs = [Cost(STEP, 512, place, VANILLA, time, None, "a card") for place, time in ((500, 1.0), (1500, 2.0), (2000, 3.5))]
    others = [Cost(STEP, 1024, 500, VANILLA, 9.0, None, "a card"), Cost(STEP, 512, 500, WORD, 8.0, None, "a card")]
    assert milliseconds([*others, *costs], run) == (None if expected is None else pytest.approx(expected))


def test_what_fails_does_not_keep_the_rest_from_being_measured(results, monkeypatch):
    loads = [Workload(size, 211, batch=4, window=5, precision="fp32", tokens=4_000) for size in (8, 16, 24)]
    plans = cost_plans(torch.device("cpu"), loads)
    plans = [replace(plan, calls=1, repeats=2, warm_up=1, gate=(), learning=SHORT) for plan in plans]

    def bench(plan, observe):
        if plan.workloads[0].size == 8:
            raise InputError("out of GPU memory")
        found = run_bench(replace(plan, groups=("schemes",)), observe)
        wrong = [Check("kernels are references", "16 units", 1.0, 0.1)] if plan.workloads[0].size == 16 else []
        return replace(found, checks=wrong)

    monkeypatch.setattr("varsmooth.reproduce.cost.run_bench", bench)
    with pytest.raises(InputError, match="cost of 8 units with 211 words: out of GPU memory"):
        measure_cost(results, plans, lambda *_: None)
    assert {cost.size for cost in read_cost(results)} == {24}
    with pytest.raises(InputError, match="cost of 16 units with 211 words: nothing is timed while results are wrong"):
        measure_cost(results, plans[1:], lambda *_: None)
