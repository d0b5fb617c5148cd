"""Pictures of a sweep: development perplexity over trials, and over what they cost."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from varsmooth.errors import InputError
from varsmooth.report.plots import LIGHT, Theme, add_legend, as_png, blank_figure, colour_axes
from varsmooth.sweep import ArmSummary, StudySummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cost = Literal["trials", "minutes"]
NOTE = "line: the best so far; dots: trials; crosses: pruned"
CUT = "; at the upper edge: much worse"
MOST = 1.6
"""How many times the best perplexity is shown; what lies above is drawn at the edge, so that the best can be told apart."""


def sweep_picture(study: StudySummary, cost: Cost, theme: Theme = LIGHT) -> bytes:
    """Return a PNG of development perplexity over trials or minutes, one colour per arm."""
    arms = [arm for arm in study.arms if any(trial.valid_perplexity is not None for trial in arm.trials)]
    if not arms:
        raise InputError("nothing to draw: no trial of this study has ended with a perplexity")
    values = [trial.valid_perplexity for arm in arms for trial in arm.trials if trial.valid_perplexity is not None]
    top = min(max(values), MOST * min(values))
    figure = blank_figure()
    axes = figure.add_subplot()
    lines = [_draw(axes, arm, cost, top, theme.lines[number % len(theme.lines)]) for number, arm in enumerate(arms)]
    axes.set_xlim(left=0)
    if cost == "trials":
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel({"trials": "trials", "minutes": "minutes of training"}[cost], color=theme.ink)
    axes.set_ylabel("development perplexity", color=theme.ink)
    axes.set_title(NOTE + (CUT if top < max(values) else ""), color=theme.ink, fontsize=8, loc="right", alpha=0.7)
    colour_axes(axes, theme)
    add_legend(axes, lines, [arm.arm for arm in arms], theme)
    return as_png(figure, theme)


def _draw(axes: Axes, arm: ArmSummary, cost: Cost, top: float, colour: str) -> Any:
    places = [float(number) if cost == "trials" else trial.minutes_so_far for number, trial in enumerate(arm.trials, start=1)]
    known = [
        (x, min(trial.valid_perplexity, top), trial.state)
        for x, trial in zip(places, arm.trials, strict=True)
        if trial.valid_perplexity is not None
    ]
    for state, marker in (("finished", "o"), ("pruned", "x")):
        points = [(x, value) for x, value, found in known if found == state]
        if points:
            across, up = zip(*points, strict=True)
            axes.scatter(across, up, color=colour, marker=marker, s=16, alpha=0.6)
    complete = [(x, value) for x, value, state in known if state == "finished"]
    best = list(accumulate((value for _, value in complete), min))
    # To the end of the arm: trials that were no better have cost something too.
    (line,) = axes.step(
        [*(x for x, _ in complete), *places[-1:]],
        [*best, *(best[-1:] or [float("nan")])],
        where="post",
        color=colour,
        linewidth=2,
    )
    return line
