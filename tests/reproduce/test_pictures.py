from __future__ import annotations

import pytest

from varsmooth.experiment.seeds import Spread
from varsmooth.reproduce import pictures
from varsmooth.reproduce.pictures import line_chart

CURVES = {
    "vanilla": [(512.0, Spread(0.7, 0.1, 3)), (1024.0, Spread(2.0, 0.3, 3))],
    "not run": [],
    "word": [(512.0, Spread(0.8, None, 1)), (2048.0, Spread(5.0, None, 1))],
    "floor": [(512.0, Spread(0.3, None, 1)), (2048.0, Spread(1.5, None, 1))],
}


@pytest.fixture
def draw(monkeypatch):
    """Return the axes of a chart instead of its bytes."""
    monkeypatch.setattr(pictures, "as_png", lambda figure, _: figure.axes[0])
    return lambda **about: line_chart(CURVES, title="cost", across="units", up="ms/step", floor="floor", **about)


def test_every_curve_with_points_has_a_line_and_its_name(draw):
    axes = draw()
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == ("cost", "units", "ms/step")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["vanilla", "word", "floor"]
    lines = [found.lines[0] for found in axes.containers]
    assert [list(map(tuple, line.get_xydata())) for line in lines] == [
        [(512, 0.7), (1024, 2.0)],
        [(512, 0.8), (2048, 5.0)],
        [(512, 0.3), (2048, 1.5)],
    ]
    assert [(line.get_linestyle(), line.get_marker()) for line in lines] == [("-", "o"), ("-", "s"), ("--", "None")]
    assert len({line.get_color() for line in lines}) == 3


def test_the_spread_over_seeds_is_a_bar_and_one_seed_has_none(draw):
    vanilla, word, _ = draw().containers
    (bars,) = vanilla.lines[2]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert ends == [pytest.approx([0.6, 0.8]), pytest.approx([1.7, 2.3])]
    assert word.lines[2] == ()


def test_a_logarithmic_axis_has_marks_that_can_be_read(draw):
    plain, both = draw(), draw(logarithmic=True, logarithmic_up=True)
    assert [(axes.get_xscale(), axes.get_yscale()) for axes in (plain, both)] == [("linear", "linear"), ("log", "log")]
    assert [tick.get_text() for tick in both.get_xticklabels()] == ["512", "1,024", "2,048"], "one at every point"
    assert [tick.get_text() for tick in both.get_yticklabels()] == ["0.5", "1", "2", "5"]


def test_no_difference_has_a_line_only_where_it_is_asked_for(draw):
    level = [[[0.0, 0.0], [1.0, 0.0]]]
    for zero, expected in ((False, []), (True, level)):
        axes = draw(zero=zero)
        of_curves = {part for found in axes.containers for part in (found.lines[0], *found.lines[1])}
        assert [line.get_xydata().tolist() for line in axes.get_lines() if line not in of_curves] == expected
