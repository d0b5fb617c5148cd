"""Curves of experiments as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from varsmooth.experiment.seeds import Spread
from varsmooth.report.plots import LIGHT, add_grid, as_png, blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = ("o", "s", "^", "D", "v", "P", "X")
STEPS = tuple(figure * 10.0**power for power in range(-3, 6) for figure in (1, 2, 5))
"""Where a logarithmic axis may have its marks."""
DASHED = {"linestyle": "--", "color": LIGHT.ink}
Point = tuple[float, Spread]


def line_chart(
    curves: Mapping[str, Sequence[Point]],
    *,
    title: str,
    across: str,
    up: str,
    logarithmic: bool = False,
    logarithmic_up: bool = False,
    floor: str = "",
    zero: bool = False,
) -> bytes:
    """Return a PNG with a line for each curve that has points; seeds' spread is a bar, the curve called ``floor`` is dashed.

    ``zero``: with a line where there is no difference, which is always in sight.
    """
    figure = blank_figure()
    axes = figure.add_subplot()
    for number, (label, points) in enumerate((label, points) for label, points in curves.items() if points):
        _draw(axes, label, points, DASHED if label == floor else _look(number))
    if zero:
        axes.axhline(0, color=LIGHT.ink, linewidth=1)
    if logarithmic:
        _make_logarithmic_across(axes, sorted({value for points in curves.values() for value, _ in points}))
    if logarithmic_up:
        _make_logarithmic_up(axes)
    axes.set_title(title, color=LIGHT.ink, fontsize=13, loc="left", pad=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    add_grid(axes, LIGHT)
    axes.legend(frameon=False, fontsize=9)
    return as_png(figure, LIGHT)


def _look(number: int) -> dict[str, Any]:
    return {"linestyle": "-", "color": LIGHT.lines[number % len(LIGHT.lines)], "marker": MARKS[number % len(MARKS)]}


def _draw(axes: Axes, label: str, points: Sequence[Point], look: Mapping[str, Any]) -> None:
    values, heights = [value for value, _ in points], [height.mean for _, height in points]
    bars = [height.deviation or 0.0 for _, height in points]
    axes.errorbar(values, heights, yerr=bars if any(bars) else None, capsize=3, label=label, **look)


def _make_logarithmic_across(axes: Axes, ticks: Sequence[float]) -> None:
    """With a mark at every point."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,g}" if tick < 1e3 else f"{tick:,.0f}" for tick in ticks])
    axes.minorticks_off()


def _make_logarithmic_up(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [tick for tick in STEPS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
