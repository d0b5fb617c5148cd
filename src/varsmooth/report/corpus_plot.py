"""A picture of what Kneser-Ney does to the words of a corpus."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from varsmooth.errors import InputError
from varsmooth.files import write_atomically
from varsmooth.report.corpus import CorpusStatistics, WordMass
from varsmooth.report.plots import LIGHT, as_png, blank_figure, colour_axes
from varsmooth.report.runs import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

Place = tuple[int, int]
RAISED, LOWERED = LIGHT.lines[:2]
LONGEST_WORD = 20
ABOVE: Sequence[Place] = [(-6, 5), (-20, 20), (-38, 34)]
BELOW: Sequence[Place] = [(6, -5), (-6, -5), (7, 4), (14, -18), (28, -30)]
"""Where a name may stand, in points from its dot: the first that is free is taken."""
LEADER = {"arrowstyle": "-", "color": LIGHT.ink, "lw": 0.5, "alpha": 0.5, "shrinkA": 0, "shrinkB": 3}


def corpus_picture(statistics: CorpusStatistics) -> bytes:
    """Return a PNG: each word's Kneser-Ney mass against its unigram mass, and the mean rate by frequency band."""
    with warnings.catch_warnings():
        # Measuring a name warns as drawing it does.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        return _picture(statistics)


def write_corpus_picture(path: Path | str, statistics: CorpusStatistics) -> None:
    """Write ``corpus_picture`` to a PNG file."""
    picture = corpus_picture(statistics)
    try:
        write_atomically(Path(path), picture)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot be written: {error.strerror or error}") from None


def _picture(statistics: CorpusStatistics) -> bytes:
    figure = blank_figure()
    figure.set_size_inches(11, 5)
    scatter, bars = figure.subplots(1, 2, width_ratios=(3, 2))
    for axes in (scatter, bars):
        _dress(axes)
    _draw_words(scatter, statistics)
    _draw_bands(bars, statistics)
    figure.suptitle(printable(statistics.data), color=LIGHT.ink, fontsize=14, x=0.01, ha="left", parse_math=False)
    figure.canvas.draw()  # settles the layout, so that labels can be placed where there is room
    taken = [scatter.get_legend().get_window_extent(), *_dots(scatter, [*statistics.lowered, *statistics.raised])]
    _label_words(scatter, statistics.lowered, LOWERED, BELOW, taken)
    _label_words(scatter, statistics.raised, RAISED, ABOVE, taken)
    return as_png(figure, LIGHT)


def _draw_words(axes: Axes, statistics: CorpusStatistics) -> None:
    seen = statistics.masses.kneser_ney > 0
    unigram, kneser_ney = statistics.masses.unigram[seen], statistics.masses.kneser_ney[seen]
    for label, colour, side in (
        ("raised by Kneser-Ney", RAISED, kneser_ney >= unigram),
        ("lowered by Kneser-Ney", LOWERED, kneser_ney < unigram),
    ):
        axes.scatter(unigram[side].tolist(), kneser_ney[side].tolist(), s=9, color=colour, alpha=0.35, lw=0, label=label)
    ends = float(kneser_ney.min()), float(unigram.max())
    axes.plot(ends, ends, color=LIGHT.ink, linewidth=0.9, linestyle="--", alpha=0.6, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("unigram mass")
    axes.set_ylabel("Kneser-Ney mass")
    axes.set_title("Mass of each word", color=LIGHT.ink, fontsize=11, loc="left")
    legend = axes.legend(loc="upper left", frameon=False, fontsize=9, markerscale=2, labelcolor=LIGHT.ink)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(0.9)


def _draw_bands(axes: Axes, statistics: CorpusStatistics) -> None:
    bands = [band for band in statistics.bands if band.mean_rate is not None]
    bars = axes.bar([band.label for band in bands], [band.mean_rate or 0.0 for band in bands], color=LIGHT.lines[2], width=0.7)
    axes.bar_label(bars, [f"{band.words:,}" for band in bands], padding=2, fontsize=8, color=LIGHT.ink)
    axes.margins(y=0.1)
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("occurrences in train")
    axes.set_ylabel(f"mean Kneser-Ney rate (gamma {statistics.gamma:g})")
    axes.set_title("Rates by frequency, with number of words", color=LIGHT.ink, fontsize=11, loc="left")


def _dress(axes: Axes) -> None:
    colour_axes(axes, LIGHT)
    axes.tick_params(colors=LIGHT.ink, length=0, which="both", labelsize=9)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(LIGHT.ink)


def _dots(axes: Axes, words: Sequence[WordMass]) -> list[Bbox]:
    """Return where on the canvas the dots of these words are."""
    from matplotlib.transforms import Bbox

    places = [axes.transData.transform((item.unigram, item.kneser_ney)) for item in words]
    return [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in places]


def _label_words(axes: Axes, words: Sequence[WordMass], colour: str, places: Sequence[Place], taken: list[Bbox]) -> None:
    """Name words beside their dots, leaving out those for which there is no room."""
    for item in words:
        point = item.unigram, item.kneser_ney
        place = _free_place(axes, printable(item.word)[:LONGEST_WORD], point, places, taken)
        if place is not None:
            axes.scatter(*point, s=18, color=colour, zorder=3)
            axes.annotate("", point, place, textcoords="offset points", arrowprops=LEADER)


def _free_place(axes: Axes, word: str, point: tuple[float, float], places: Sequence[Place], taken: list[Bbox]) -> Place | None:
    """Write the word at the first of the places that lies inside the axes and covers no other name."""
    for place in places:
        label = axes.annotate(
            word,
            point,
            place,
            textcoords="offset points",
            fontsize=8.5,
            color=LIGHT.ink,
            ha="left" if place[0] > 0 else "right",
            va="bottom" if place[1] > 0 else "top",
            parse_math=False,
        )
        name = label.get_window_extent().padded(3)
        if name.x1 <= axes.bbox.x1 and name.y0 >= axes.bbox.y0 and not any(name.overlaps(other) for other in taken):
            taken.append(name)
            return place
        label.remove()
    return None
