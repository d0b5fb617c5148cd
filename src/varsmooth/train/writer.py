"""Writing a run's models and states beside its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from types import TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from varsmooth.train.checkpoint import model_snapshot, state_snapshot, write_model, write_state
from varsmooth.train.folder import RunFolder
from varsmooth.train.sealed import Snapshot

MODEL, STATE = "model", "state"


@dataclass(frozen=True)
class _Job:
    snapshot: Snapshot
    write: Callable[[Snapshot], None]


class RunWriter(Protocol):
    """Takes what a run keeps of itself as it trains."""

    @property
    def behind(self) -> bool:
        """Whether a state still waits: states come faster than the disk takes them, and the next may be left out."""
        ...

    def model(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None: ...

    def state(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None: ...

    def metrics(self, metrics: Mapping[str, Any]) -> None: ...

    def is_through(self, within: float) -> bool:
        """Wait for the disk for so many seconds, and say whether it has everything, or has failed."""
        ...

    def flush(self) -> None:
        """Wait until everything is on disk."""
        ...


class Writer:
    """Copies what is to be written and leaves the rest to a thread, so that training waits for the copy alone.

    At most one model and one state wait. A newer model takes the place of the one that waits, and a place in the queue
    never moves back: so a state is written only after the model that was the best when it was taken, or a newer one, and
    a resumed run finds a model at least as new as its state's best step. What fails is raised by the next call, and from
    then on nothing more is written.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._waiting: dict[str, _Job] = {}
        self._writing = False
        self._closed = False
        self._error: BaseException | None = None
        self._spare: dict[str, list[Tensor]] = {MODEL: [], STATE: []}
        self._changed = Condition()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write what waits; a failure is raised unless another one is on its way already."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self._raise()

    @property
    def behind(self) -> bool:
        return STATE in self._waiting

    def model(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write a model soon, instead of an older one that still waits."""
        self._raise()
        job = _Job(model_snapshot(tensors, meta, self._buffer(MODEL)), partial(write_model, self.folder.model_path))
        self._queue(MODEL, job)

    def state(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write a state soon; waits where another one still waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self.behind)
        self._raise()
        job = _Job(state_snapshot(step, tensors, meta, self._buffer(STATE)), partial(write_state, self.folder, step))
        self._queue(STATE, job)

    def metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write a line of metrics here and now."""
        self.folder.append_metrics(metrics)

    def is_through(self, within: float) -> bool:
        with self._changed:
            return self._changed.wait_for(self._has_nothing_to_do, within)

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(self._has_nothing_to_do)
        self._raise()

    def _has_nothing_to_do(self) -> bool:
        return not self._waiting and not self._writing

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _buffer(self, kind: str) -> Tensor | None:
        return self._spare[kind].pop() if self._spare[kind] else None

    def _queue(self, kind: str, job: _Job) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name=f"writer of {self.folder.path.name}", daemon=True)
            self._thread.start()
        with self._changed:
            if self._error is not None:
                return
            if kind in self._waiting:
                self._spare[kind].append(self._waiting[kind].snapshot.buffer)
            self._waiting[kind] = job  # a dictionary keeps the place of a key whose value is replaced
            self._changed.notify_all()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            kind, job = taken
            error = None
            try:
                job.write(job.snapshot)
            except BaseException as failure:
                error = failure
            with self._changed:
                self._spare[kind].append(job.snapshot.buffer)
                self._writing = False
                if error is not None:
                    self._error = error
                    self._waiting.clear()
                self._changed.notify_all()

    def _take(self) -> tuple[str, _Job] | None:
        """Wait for the job whose turn it is; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            kind = next(iter(self._waiting))
            self._writing = True
            return kind, self._waiting.pop(kind)
