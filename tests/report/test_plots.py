from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runs_for_tests import MakeRun
from varsmooth.errors import InputError
from varsmooth.report import RunSummary, learning_curves, plots, write_learning_curves
from varsmooth.report.plots import DARK, LIGHT, sensible_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FALLING = [(40, 900.0), (80, 200.0), (120, 110.0), (160, 100.0), (200, 102.0)]
PNG = b"\x89PNG\r\n\x1a\n"


def drawn_axes(runs: list[RunSummary], monkeypatch: pytest.MonkeyPatch) -> Axes:
    drawn: list[Axes] = []
    monkeypatch.setattr(plots, "as_png", lambda figure, _: drawn.append(figure.axes[0]) or b"")
    learning_curves(runs)
    (axes,) = drawn
    return axes


def test_a_picture_is_a_png_of_the_size_it_says(make_run: MakeRun) -> None:
    png = learning_curves([make_run(seed=seed, curve=FALLING) for seed in (1, 2)])
    assert png.startswith(PNG)
    assert struct.unpack(">II", png[16:24]) == (1280, 720)


def test_the_same_runs_give_the_same_picture_and_other_runs_another(make_run: MakeRun) -> None:
    run, other = make_run(curve=FALLING), make_run(curve=[(step, value + 20) for step, value in FALLING])
    assert learning_curves([run]) == learning_curves([run])
    assert learning_curves([run]) != learning_curves([other])
    assert learning_curves([run]) != learning_curves([run], theme=DARK)


def test_pyplot_is_left_alone(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert learning_curves([make_run(curve=FALLING)]).startswith(PNG)


@pytest.mark.parametrize("recipe", ["_hidden", r"$\nonsense{$", "日本語", "a" * 500])
def test_any_recipe_name_can_be_drawn(make_run: MakeRun, recipe: str) -> None:
    named = learning_curves([make_run(recipe, curve=FALLING)])
    assert named != learning_curves([make_run("", curve=FALLING)])


def test_more_recipes_than_colours_are_told_apart_by_the_style_of_their_lines(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"recipe {number}" for number in range(9)]
    runs = [make_run(name, curve=[(40, 100.0 + number), (80, 90.0)]) for number, name in enumerate(names)]
    axes = drawn_axes(runs, monkeypatch)
    lines = axes.get_lines()
    assert [line.get_xydata().tolist() for line in lines] == [[[40, 100 + number], [80, 90]] for number in range(9)]
    looks = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert looks == [*((colour, "-") for colour in LIGHT.lines), *((colour, "--") for colour in LIGHT.lines[:2])]
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == names
    assert [(line.get_color(), line.get_linestyle()) for line in legend.get_lines()] == looks


def test_of_many_recipes_as_many_are_named_as_fit_beside_the_picture(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(f"recipe {number}", curve=FALLING) for number in range(40)]
    axes = drawn_axes(runs, monkeypatch)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [*(f"recipe {number}" for number in range(19)), "... and 21 more"]
    assert len([line for line in axes.get_lines() if len(line.get_xydata())]) == 40
    figure = axes.get_figure()
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().y0 >= figure.bbox.y0, "and all of it is in the picture"


def test_the_mean_is_drawn_where_every_seed_was_evaluated_and_the_best_of_each_is_marked(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [(40, 100.0), (80, 80.0), (120, 82.0)], [(80, 90.0), (100, 85.0)]
    axes = drawn_axes([make_run(seed=1, curve=first), make_run(seed=2, curve=second), make_run(seed=3)], monkeypatch)
    assert [list(map(tuple, line.get_xydata())) for line in axes.get_lines()] == [first, second, [(80, 85.0)]]
    (dots,) = axes.collections
    assert dots.get_offsets().tolist() == [[80, 80], [100, 85]]


def test_seeds_that_were_never_evaluated_at_the_same_step_have_no_mean(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(seed=1, curve=[(40, 100.0)]), make_run(seed=2, curve=[(50, 90.0)])]
    lines = drawn_axes(runs, monkeypatch).get_lines()
    assert [line.get_xydata().tolist() for line in lines] == [[[40, 100]], [[50, 90]], []]


def test_limits_cut_off_the_start_and_keep_the_rest() -> None:
    bottom, top = sensible_limits([[900.0, 200.0, 110.0, 100.0, 102.0], [700.0, 150.0, 90.0]])
    assert 85 < bottom < 90
    assert 140 < top < 150


def test_limits_follow_a_curve_that_rises_but_not_for_ever() -> None:
    assert sensible_limits([[900.0, 100.0, 180.0]])[1] > 180
    assert sensible_limits([[900.0, 100.0, 1e9]])[1] < 300


def test_limits_are_not_set_by_one_failed_run() -> None:
    assert sensible_limits([[900.0, 100.0], [5000.0]])[1] < 600


def test_limits_of_a_single_value_leave_room() -> None:
    bottom, top = sensible_limits([[100.0]])
    assert bottom < 100 < top


def test_nothing_to_draw_is_said(make_run: MakeRun) -> None:
    with pytest.raises(InputError, match="none of the runs has been evaluated"):
        learning_curves([make_run()])


def test_without_matplotlib_the_extra_is_named(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'varsmooth\[plot\]'"):
        learning_curves([make_run(curve=FALLING)])


def test_a_file_that_cannot_be_written_is_named(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(curve=FALLING)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"curves\.png: cannot be written"):
        write_learning_curves(tmp_path / "file" / "curves.png", [run])
    write_learning_curves(tmp_path / "curves.png", [run])
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)
