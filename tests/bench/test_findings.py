from __future__ import annotations

import math

import pytest

from varsmooth.bench.findings import Check, Findings, Measurement, Quartiles, Target
from varsmooth.bench.plan import PENN, WIKITEXT
from varsmooth.bench.targets import PEAK_MEMORY, RATIO, STEP, target_for
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, SCHEMES, VANILLA, WORD


def test_a_spread_is_median_and_quartiles() -> None:
    assert Quartiles.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Quartiles(3.0, 2.0, 4.0, 5)
    assert Quartiles.of([1.0, 2.0]) == Quartiles(1.5, 1.25, 1.75, 2)
    assert Quartiles.of([7.0]) == Quartiles(7.0, 7.0, 7.0, 1)


@pytest.mark.parametrize(
    ("found", "verdict"), [(0.5, "aim"), (0.8, "aim"), (0.81, "reach"), (1.3, "reach"), (1.31, "no"), (math.nan, "no")]
)
def test_less_is_better(found: float, verdict: str) -> None:
    assert Target("x", reach=1.3, aim=0.8).verdict(found) == verdict


def test_without_an_aim_there_is_only_reaching() -> None:
    assert Target("x", reach=1.25).verdict(0.1) == "reach"


@pytest.mark.parametrize(
    ("quantity", "size", "words", "scheme", "figures"),
    [
        (STEP, 512, PENN, VANILLA, (2.3, 1.3, 0.8)),
        (STEP, 1024, PENN, VANILLA, (4.0, 2.2, 1.6)),
        (STEP, 512, WIKITEXT, VANILLA, (5.1, 2.2, 1.4)),
        (RATIO, 512, PENN, ELEMENT_BATCH, (1.18, 1.08, 1.03)),
        (RATIO, 1024, WIKITEXT, ELEMENT_BATCH, (None, 1.08, 1.03)),
        (RATIO, 512, PENN, ELEMENT_SEQUENCE, (None, 1.15, 1.05)),
        (RATIO, 512, PENN, WORD, (1.12, 1.05, 1.02)),
        ("fleet of 8", 512, PENN, VANILLA, (1.63, 0.8, 0.5)),
        (PEAK_MEMORY, 512, PENN, VANILLA, (None, 400, 200)),
    ],
)
def test_every_figure_to_reach_has_its_target(
    quantity: str, size: int, words: int, scheme: str, figures: tuple[float | None, float, float]
) -> None:
    target = target_for(quantity, size, words, scheme, "cuda")
    assert target is not None
    assert (target.start, target.reach, target.aim) == figures
    assert scheme in target.name
    assert scheme in SCHEMES


def test_other_figures_have_none() -> None:
    assert target_for(STEP, 1024, WIKITEXT, VANILLA, "cuda") is None
    assert target_for(STEP, 512, PENN, WORD, "cuda") is None
    assert target_for(RATIO, 512, PENN, "blank", "cuda") is None
    assert target_for("fleet of 4", 512, PENN, VANILLA, "cuda") is None
    assert target_for(RATIO, 128, 4000, WORD, "cpu") is None
    assert target_for(STEP, 512, PENN, VANILLA, "cpu") is None


def test_on_the_cpu_element_wise_smoothing_may_take_a_quarter_more() -> None:
    for scheme in (ELEMENT_BATCH, ELEMENT_SEQUENCE):
        target = target_for(RATIO, 128, 4000, scheme, "cpu")
        assert target is not None
        assert (target.start, target.reach, target.aim) == (None, 1.25, None)


def test_a_check_passes_within_its_tolerance() -> None:
    assert all(Check("a", "b", found, 1e-3).passed for found in (0.0, 1e-3))
    assert not any(Check("a", "b", found, 1e-3).passed for found in (1.1e-3, math.nan, math.inf))


def test_json_holds_no_nan_and_says_what_was_reached() -> None:
    red = Check("a", "b", math.nan, 1e-3)
    measured = Measurement(
        "schemes", STEP, 512, PENN, VANILLA, Quartiles(1.0, 0.9, 1.1, 9), "ms", 0.3, Target("t", 1.3, 0.8, 2.3)
    )
    found = Findings({"commit": None}, [red], [measured], 1.5).as_json()
    assert found["gate"]["passed"] is False
    assert found["gate"]["checks"][0]["found"] is None
    assert found["measurements"] == [
        {
            "group": "schemes",
            "quantity": "step",
            "size": 512,
            "vocabulary": 10_000,
            "scheme": "vanilla",
            "median": 1.0,
            "q1": 0.9,
            "q3": 1.1,
            "unit": "ms",
            "repeats": 9,
            "floor": 0.3,
            "start": 2.3,
            "reach": 1.3,
            "aim": 0.8,
            "reached": "reach",
        }
    ]
