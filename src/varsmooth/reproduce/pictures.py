"""Curves of experiments as pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from varsmooth.experiment.seeds import Spread
from varsmooth.report.plots import LIGHT, MissingPlotError

MARKS = ("o", "s", "^", "D", "v", "P", "X")
STEPS = tuple(figure * 10.0**power for power in range(-3, 6) for figure in (1, 2, 5))
"""Where a logarithmic axis may have its marks."""
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
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPlotError("pictures need matplotlib: pip install 'varsmooth[plot]'") from None
    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (label, points) in enumerate((label, points) for label, points in curves.items() if points):
        colour, mark = LIGHT.lines[number % len(LIGHT.lines)], MARKS[number % len(MARKS)]
        values, heights = [value for value, _ in points], [height.mean for _, height in points]
        bars = [height.deviation or 0.0 for _, height in points]
        look: dict[str, Any] = {"linestyle": "-", "color": colour, "marker": mark}
        if label == floor:
            look = {"linestyle": "--", "color": LIGHT.ink}
        axes.errorbar(values, heights, yerr=bars if any(bars) else None, capsize=3, label=label, **look)
    if zero:
        axes.axhline(0, color=LIGHT.ink, linewidth=1)
    if logarithmic:
        axes.set_xscale("log")
        ticks = sorted({value for points in curves.values() for value, _ in points})
        axes.set_xticks(ticks, [f"{tick:,g}" if tick < 1e3 else f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
    if logarithmic_up:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [tick for tick in STEPS if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_title(title, color=LIGHT.ink, fontsize=13, loc="left", pad=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(visible=True, color=LIGHT.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
    axes.legend(frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=LIGHT.ground)
    return buffer.getvalue()
