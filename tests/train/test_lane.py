from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from varsmooth.train import lane as lane_module
from varsmooth.train.lane import STEPS_AHEAD, STEPS_PER_MARK, Lane

CPU = torch.device("cpu")


def test_a_lane_has_its_threads_and_gives_them_back() -> None:
    before = torch.get_num_threads()
    with Lane(CPU, before + 1).entered():
        assert torch.get_num_threads() == before + 1
        with Lane(CPU, 0).entered():
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), Lane(CPU, before + 1).entered():
        raise KeyError
    assert torch.get_num_threads() == before


def test_the_cpu_is_always_ready() -> None:
    lane = Lane(CPU)
    for _ in range(3 * STEPS_AHEAD):
        lane.stepped()
        lane.wait()
        assert lane.ready()
    lane.close()


class FakeEvent:
    made: list[FakeEvent] = []  # noqa: RUF012

    def __init__(self, *, blocking: bool) -> None:
        assert blocking
        self.done = self.awaited = False
        self.made.append(self)

    def record(self, stream: object) -> None:
        assert stream is not None

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = self.awaited = True


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Lane:
    """A lane on a GPU that does nothing until a test says so."""

    @contextmanager
    def entered(stream: object) -> Iterator[None]:
        yield

    FakeEvent.made = []
    monkeypatch.setattr(lane_module, "_spare", {})
    monkeypatch.setattr(lane_module.torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(lane_module.torch.cuda, "Stream", lambda _: "stream")
    monkeypatch.setattr(lane_module.torch.cuda, "stream", entered)
    return Lane(torch.device("cuda"))


def queue(lane: Lane, steps: int) -> None:
    for _ in range(steps):
        assert lane.ready()
        lane.stepped()


def test_no_more_than_so_many_steps_wait_on_the_gpu(on_gpu: Lane) -> None:
    queue(on_gpu, STEPS_AHEAD)
    assert not on_gpu.ready()
    FakeEvent.made[0].done = True
    queue(on_gpu, STEPS_PER_MARK)
    assert not on_gpu.ready()
    for event in FakeEvent.made:
        event.done = True
    queue(on_gpu, STEPS_AHEAD)
    assert not on_gpu.ready()


def test_waiting_is_for_the_oldest_steps_alone(on_gpu: Lane) -> None:
    queue(on_gpu, STEPS_AHEAD)
    on_gpu.wait()
    assert [event.awaited for event in FakeEvent.made] == [True, *[False] * (STEPS_AHEAD // STEPS_PER_MARK - 1)]
    assert on_gpu.ready()
    on_gpu.wait()
    assert sum(event.awaited for event in FakeEvent.made) == 1


def test_the_stream_of_a_run_that_has_ended_serves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeStream:
        def __init__(self, _: torch.device) -> None:
            pass

        def synchronize(self) -> None:
            pass

    monkeypatch.setattr(lane_module, "_spare", {})
    monkeypatch.setattr(lane_module.torch.cuda, "Stream", FakeStream)
    first, second, third = (Lane(torch.device("cuda")) for _ in range(3))
    assert len({first.stream, second.stream, third.stream}) == 3
    for _ in range(2):  # closed twice, it is still one
        second.close()
    fourth, fifth = (Lane(torch.device("cuda")) for _ in range(2))
    assert fourth.stream is second.stream
    assert fifth.stream not in (first.stream, second.stream, third.stream)


@pytest.mark.gpu
def test_work_inside_a_lane_is_queued_on_its_own_stream() -> None:
    first, second = (Lane(torch.device("cuda")) for _ in range(2))
    with first.entered():
        assert torch.cuda.current_stream() == first.stream != second.stream
        ones = torch.ones(2000, 2000, device="cuda")
        for _ in range(40):
            ones = ones @ ones * 0 + 1
            first.wait()
            first.stepped()
    assert torch.cuda.current_stream() != first.stream
    first.close()
    assert first.ready()
    assert ones.eq(1).all()
