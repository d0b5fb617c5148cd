"""Learning curves as a picture."""

from __future__ import annotations

import io
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.report.runs import RunGroup, RunSummary, group_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Curve = list[tuple[int, float]]
LONGEST_LABEL = 48
MOST_INSIDE = 6
MOST_NAMED = 20
"""Names beside a picture of this height."""
STYLES = ("-", "--", ":", "-.")


class MissingPlotError(InputError):
    """Matplotlib is not installed."""


@dataclass(frozen=True)
class Theme:
    """Colours of a picture; ``lines`` can be told apart with any colour vision (after Okabe and Ito)."""

    ground: str
    ink: str
    faint: str
    lines: tuple[str, ...]


LIGHT = Theme("#ffffff", "#222222", "#dddddd", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"))
DARK = Theme("#16181d", "#e6e6e6", "#3a3f4a", ("#56b4e9", "#ff8a4c", "#2fc49a", "#e79ac4", "#f0c75e", "#f0f0f0", "#8fa8ff"))


def learning_curves(runs: Sequence[RunSummary], *, title: str = "Learning curves", theme: Theme = LIGHT) -> bytes:
    """Return a PNG of development perplexity over training steps, one colour per recipe and a thin line per seed."""
    groups = [group for group in group_runs(runs) if any(run.curve for run in group.runs)]
    if not groups:
        raise InputError("no learning curves to draw: none of the runs has been evaluated yet (metrics.jsonl is empty)")
    figure = blank_figure()
    axes = figure.add_subplot()
    lines = []
    for number, group in enumerate(groups):
        colour, style = theme.lines[number % len(theme.lines)], STYLES[number // len(theme.lines) % len(STYLES)]
        lines.append(_draw_group(axes, group, colour, style))
    clipped = _set_limits(axes, [[value for _, value in run.curve] for group in groups for run in group.runs if run.curve])
    _dress(axes, title, theme, clipped)
    add_legend(axes, lines, _legend_labels(groups), theme)
    return as_png(figure, theme)


def write_learning_curves(path: Path | str, runs: Sequence[RunSummary], *, title: str = "Learning curves") -> None:
    """Write ``learning_curves`` to a PNG file."""
    picture = learning_curves(runs, title=title)
    try:
        write_atomically(Path(path), picture)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def sensible_limits(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the range worth showing: down to the best value, up to 1.4 times the worst run's best.

    The first evaluations are far higher than anything of interest; a curve that rises at the end is followed a little further.
    """
    lowest, highest = min(map(min, curves)), max(map(max, curves))
    reference = min(max(map(min, curves)), 2 * lowest)
    final = max(curve[-1] for curve in curves)
    top = min(highest, max(1.4 * reference, min(1.05 * final, 2.5 * reference)))
    margin = 0.06 * (top - lowest) or 0.05 * lowest
    return lowest - margin, top + margin


def blank_figure() -> Figure:
    """A figure outside pyplot, which keeps global state and may look for a screen."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPlotError("pictures need matplotlib: pip install 'varsmooth[plot]'") from None
    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_group(axes: Axes, group: RunGroup, colour: str, style: str) -> Line2D:
    """Draw each seed thinly, their mean boldly, and mark the best evaluation of each run; return the bold line."""
    curves = [run.curve for run in group.runs if run.curve]
    if len(curves) > 1:
        for curve in curves:
            axes.plot(*_split(curve), color=colour, linestyle=style, linewidth=0.8, alpha=0.55, zorder=2)
    best = [min(curve, key=lambda point: point[1]) for curve in curves]
    axes.scatter(*_split(best), color=colour, s=16, zorder=4)
    (bold,) = axes.plot(*_split(_mean_curve(curves)), color=colour, linestyle=style, linewidth=2, zorder=3)
    return bold


def _split(curve: Curve) -> tuple[list[int], list[float]]:
    return [step for step, _ in curve], [value for _, value in curve]


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Average over the steps at which every curve has a value."""
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return [(step, statistics.fmean(table[step] for table in tables)) for step in shared]


def _set_limits(axes: Axes, curves: Sequence[Sequence[float]]) -> bool:
    """Set the vertical range; return whether it leaves something out."""
    bottom, top = sensible_limits(curves)
    axes.set_ylim(bottom, top)
    return max(map(max, curves)) > top


def _dress(axes: Axes, title: str, theme: Theme, clipped: bool) -> None:
    axes.set_title(title, color=theme.ink, fontsize=13, loc="left", pad=10, parse_math=False)
    axes.set_xlabel("training step", color=theme.ink)
    axes.set_ylabel("development perplexity", color=theme.ink)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    colour_axes(axes, theme)
    note = "dots mark the best of each run" + ("; higher values are cut off" if clipped else "")
    axes.set_title(note, color=theme.ink, fontsize=8, loc="right", alpha=0.7)


def colour_axes(axes: Axes, theme: Theme) -> None:
    """Give axes the colours of a theme, a faint grid and no frame."""
    add_grid(axes, theme)
    axes.set_facecolor(theme.ground)
    axes.tick_params(colors=theme.ink, length=0)
    for spine in axes.spines.values():
        spine.set_color(theme.faint)


def add_grid(axes: Axes, theme: Theme) -> None:
    """Draw a faint grid in place of the frame."""
    axes.grid(visible=True, color=theme.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))


def _legend_labels(groups: Sequence[RunGroup]) -> list[str]:
    several = len({group.data for group in groups}) > 1
    labels = [f"{group.label} on {group.data}" if several else group.label for group in groups]
    return [label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 3]}..." for label in labels]


def add_legend(axes: Axes, lines: Sequence[Line2D], labels: Sequence[str], theme: Theme) -> None:
    """Name the lines; texts are set afterwards, so that no name is read as mathematics or left out for its underscore."""
    if len(labels) > MOST_NAMED:
        # Those that are left out are told of in the last line, which stands beside no curve.
        labels = [*labels[: MOST_NAMED - 1], f"... and {len(labels) - MOST_NAMED + 1} more"]
        lines = [*lines[: MOST_NAMED - 1], axes.plot([], [], alpha=0)[0]]
    inside = len(labels) <= MOST_INSIDE
    place: dict[str, Any] = {"loc": "upper right"} if inside else {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    legend = axes.legend(list(lines), [str(number) for number in range(len(labels))], frameon=False, fontsize=9, **place)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
        text.set_color(theme.ink)


def as_png(figure: Figure, theme: Theme) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="png", facecolor=theme.ground)
    return buffer.getvalue()
