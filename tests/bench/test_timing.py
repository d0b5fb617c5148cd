from __future__ import annotations

import pytest
import torch

from varsmooth.bench.findings import Quartiles
from varsmooth.bench.timing import Call, Turns, captured, ratio, stopwatch_for

CPU = torch.device("cpu")


def test_cases_take_turns() -> None:
    order: list[str] = []

    def stopwatch(call: Call, calls: int) -> float:
        for _ in range(calls):
            call()
        return float(len(order))

    times = Turns(2, 3, 60.0, stopwatch).time({"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert "".join(order) == "aabb" * 3
    assert times == {"a": [2.0, 6.0, 10.0], "b": [4.0, 8.0, 12.0]}


def test_a_slow_machine_repeats_less() -> None:
    for seconds, repeats in ((60.0, 9), (0.0, 3)):
        assert len(Turns(2, 9, seconds, lambda *_: 1.0).time({"a": list})["a"]) == repeats


def test_a_case_may_count_its_calls_itself() -> None:
    assert Turns(30, 1, 60.0, lambda _, calls: float(calls)).time({"a": list}, 1) == {"a": [1.0]}


def test_ratios_are_of_neighbours_so_that_drift_cancels() -> None:
    # The machine gets slower by half from repeat to repeat; b always takes a tenth longer than a.
    times = {"a": [2.0, 3.0, 4.5], "b": [2.2, 3.3, 4.95]}
    found = ratio(times, "b", "a")
    assert (found.median, found.q1, found.q3) == pytest.approx((1.1, 1.1, 1.1))
    assert found.repeats == 3


def test_a_ratio_is_the_median_of_ratios_and_not_the_ratio_of_medians() -> None:
    assert ratio({"a": [1.0, 2.0, 4.0], "b": [4.0, 2.0, 2.0]}, "b", "a") == Quartiles(1.0, 0.75, 2.5, 3)


def test_repeats_must_pair() -> None:
    with pytest.raises(ValueError, match="longer"):
        ratio({"a": [1.0, 2.0], "b": [1.0]}, "b", "a")


def test_the_stopwatch_calls_as_often_as_it_is_told_and_returns_the_time_of_one() -> None:
    calls: list[None] = []
    found = stopwatch_for(CPU)(lambda: calls.append(None), 7)
    assert len(calls) == 7
    assert 0 <= found < 1000


def test_without_a_gpu_nothing_is_captured() -> None:
    call = list
    assert captured(call, CPU) is call
