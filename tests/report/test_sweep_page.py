"""The page on a sweep, from summaries made by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from varsmooth.errors import InputError
from varsmooth.experiment.seeds import Spread
from varsmooth.report import sweep_plot
from varsmooth.report.sweep_page import render_sweep_page
from varsmooth.report.sweep_plot import sweep_picture
from varsmooth.sweep import ArmSummary, StudySummary
from varsmooth.sweep.summary import SeedSummary, TrialSummary


def trial(number: int, value: float | None, state: str = "finished", reason: str | None = None) -> TrialSummary:
    return TrialSummary(f"trial-{number:04d}", state, value, {"train.lr": 0.01 * number}, 60, 1.0, float(number), reason, None)


def study(*trials: TrialSummary, **changes: Any) -> StudySummary:
    best = next((found for found in trials if found.state == "finished"), None)
    arm = ArmSummary(
        "a<b",
        True,
        {"trials": 4, "steps_per_trial": 60, "total_steps": 200, "minutes": 9.0},
        {"trials": len(trials), "finished": 1, "pruned": 1, "failed": 1, "open": 0, "steps": 150, "minutes": 3.0},
        best,
        'name = "a"',
        [SeedSummary(1, "finished", 80.5, 79.25), SeedSummary(2, "finished", 81.5, 80.25)],
        Spread(81.0, 0.7, 2),
        Spread(79.75, 0.7, 2),
        {"train.lr": 0.75, "dropout.tables": 0.25},
        None,
        list(trials),
    )
    return StudySummary("s", True, "tpe", "median", [replace(arm, **changes)])


TRIALS = (trial(1, 90.0), trial(2, 300.0, "pruned"), trial(3, None, "failed", "out of GPU memory"), trial(4, 85.0))


def test_the_page_says_what_was_given_used_found_and_why_trials_failed() -> None:
    page = render_sweep_page(study(*TRIALS))
    for words in (
        "1 arm, each with 4 trials of 60 steps within 200 steps in all and 9 minutes; sampled by tpe, pruned by median",
        "<td>150 of 200</td>",
        "<td>3.0 of 9</td>",
        "<td>81.00 ±0.70</td><td>79.75 ±0.70</td>",
        "<tr><td>2</td><td>finished</td><td>81.50</td><td>80.25</td></tr>",
        "<td>train.lr</td><td>0.75</td>",
        "out of GPU memory",
        "a&lt;b",
    ):
        assert words in page, words
    assert page.count("<img ") == 2
    assert "a<b" not in page


def test_the_page_says_of_how_many_seeds_a_mean_is() -> None:
    seeds = [SeedSummary(1, "finished", 80.5, None), SeedSummary(2, "failed", None, None)]
    page = render_sweep_page(study(*TRIALS, seeds=seeds, seeds_valid=Spread(80.5, None, 1), seeds_test=None))
    assert "<td>80.50 (1 of 2)</td><td>-</td>" in page


def test_an_arm_without_a_result_says_so() -> None:
    page = render_sweep_page(study(trial(1, None, "failed", "r"), best_config=None, seeds=[]))
    assert "no trial was trained to the end yet" in page
    assert "nothing to draw" in page
    with pytest.raises(InputError, match="nothing to draw"):
        sweep_picture(study(), "minutes")


def test_without_matplotlib_the_rest_of_the_page_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    page = render_sweep_page(study(*TRIALS))
    assert "pip install &#x27;varsmooth[plot]&#x27;" in page
    assert "Best configurations" in page


def test_a_hopeless_trial_does_not_flatten_the_picture_and_the_line_goes_on_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(sweep_plot, "as_png", lambda figure, _: drawn.append(figure.axes[0]) or b"")
    sweep_picture(study(*TRIALS[:2], trial(3, 95.0)), "minutes")
    (axes,) = drawn
    (line,) = axes.get_lines()
    assert line.get_xydata().tolist() == [[1.0, 90.0], [3.0, 90.0], [3.0, 90.0]]
    assert max(point[1] for found in axes.collections for point in found.get_offsets()) == pytest.approx(1.6 * 90)
    assert "at the upper edge" in axes.get_title("right")
