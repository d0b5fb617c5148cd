from __future__ import annotations

import pytest
import torch

from varsmooth.train.timetable import LENGTH, Moment, Timetable

CPU = torch.device("cpu")


def moment(step: int) -> Moment:
    return Moment(
        step=step, start=10**10 + step, lr=1 / (1 + step), correction=2.0 * step, average_step=0.25, keep=float(step % 7 > 0)
    )


def as_numbers(found: Moment) -> list[float]:
    return [float(part) for part in found]


@pytest.mark.parametrize("first", [0, 5, 3 * LENGTH - 1])
def test_every_step_reads_its_own_moment_across_pages(first):
    timetable = Timetable(CPU)
    for step in range(first, first + 2 * LENGTH + 3):
        timetable.prepare(step, moment)
        assert as_numbers(timetable.now()) == pytest.approx(as_numbers(moment(step)), rel=1e-7)
        timetable.advance()


def test_a_moment_stays_when_the_cursor_goes_on():
    timetable = Timetable(CPU)
    timetable.prepare(3, moment)
    found = timetable.now()
    timetable.advance()
    assert int(found.step) == 3
    assert found.step.dim() == 0
    assert (found.step.dtype, found.start.dtype, found.lr.dtype) == (torch.int64, torch.int64, torch.float32)


def test_a_forgotten_plan_is_made_anew_from_the_step_asked_for():
    timetable = Timetable(CPU)
    timetable.prepare(0, moment)
    timetable.advance()
    timetable.forget()
    timetable.prepare(1, lambda step: moment(step)._replace(lr=0.5))
    assert (int(timetable.now().step), float(timetable.now().lr)) == (1, 0.5)


def test_pages_are_computed_once():
    asked = []
    timetable = Timetable(CPU)
    for step in range(LENGTH + 1):
        timetable.prepare(step, lambda ahead: asked.append(ahead) or moment(ahead))
        timetable.advance()
    assert asked == list(range(2 * LENGTH))
