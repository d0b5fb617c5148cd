"""Several processes that train one run together: which of them this is, and what they tell each other.

torchrun starts them. Each takes a block of the batch's columns; the gradients are added up, so that all of them take the same
step. Only the first writes, prints and evaluates.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from varsmooth.errors import InputError
from varsmooth.train.interruptions import Interruptions

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

TIMEOUT = timedelta(seconds=120)
"""How long a process waits for the others in the middle of a step; one that has died is noticed sooner."""
PAUSE = 0.01
"""Seconds between two looks at whether another process has spoken."""
RELEASE = 0.2
"""Seconds for gloo's thread to let go of its last sum."""


class LostError(InputError):
    """Another process of the run does not answer any more."""


def processes() -> int:
    """How many processes train together, as torchrun says; 1 without it."""
    return _number("WORLD_SIZE", "1")


def is_first() -> bool:
    """Whether this is the process that speaks for all."""
    return processes() == 1 or _number("RANK") == 0


def local_rank() -> int:
    """Which of the processes on its machine this is."""
    return _number("LOCAL_RANK", "0") if processes() > 1 else 0


class Ranks:
    """This process among ``size`` that train one run; alone, it has nobody to wait for."""

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        self.rank = rank
        self.size = size
        self.interruptions = Interruptions()
        """the signals to this process"""
        self.agreed: int | None = None
        """the signal that all of them know of, and stop for at the same step"""
        self._store = store
        self._spoken = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def joined(self) -> bool:
        """Whether there are others to wait for."""
        return self._store is not None

    @property
    def signal(self) -> int | None:
        """The signal to end for: while others train along, one counts from the step at which all know of it."""
        return self.agreed if self.joined else self.interruptions.received

    def columns(self, batch: int) -> range:
        """Return which columns of the whole batch are this process's."""
        if batch % self.size:
            raise InputError(
                f"train.batch = {batch} cannot be shared equally by {self.size} processes: "
                f"make it a multiple of {self.size}, or change torchrun's --nproc-per-node"
            )
        share = batch // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def exchange(self, content: Any) -> list[Any]:
        """Tell the others, and return what each has told, in their order; waits as long as it takes the slowest.

        Whatever JSON can say. There is no limit of time: torchrun ends those who wait for one that has died.
        """
        if self._store is None:
            return [content]
        self._spoken += 1
        try:
            self._store.set(f"{self._spoken}.{self.rank}", json.dumps(content))
            return [json.loads(self._heard(self._store, f"{self._spoken}.{rank}")) for rank in range(self.size)]
        except RuntimeError as error:
            raise self._lost(error) from None

    @contextmanager
    def first_here_goes_first(self) -> Iterator[None]:
        """The first process of each machine is through with this block before the others begin, which find its files."""
        ready = f"ready.{os.environ.get('GROUP_RANK', '0')}"
        if self._store is not None and local_rank() > 0:
            self._heard(self._store, ready)
        yield
        if self._store is not None and local_rank() == 0:
            self._store.set(ready, "")

    def add(self, tensor: Tensor) -> None:
        """Add up ``tensor`` over the processes, in place; the same bits come out everywhere."""
        import torch.distributed as distributed

        try:
            distributed.all_reduce(tensor)
        except RuntimeError as error:
            raise self._lost(error) from None

    def join_columns(self, part: Tensor) -> Tensor:
        """Return the columns [_, B, ...] of all processes side by side."""
        import torch.distributed as distributed

        parts = [torch.empty_like(part) for _ in range(self.size)]
        try:
            distributed.all_gather(parts, part.contiguous())
        except RuntimeError as error:
            raise self._lost(error) from None
        return torch.cat(parts, 1)

    def leave(self) -> None:
        """Have done with the others: from here on each goes its own way."""
        if self._store is None:
            return
        import torch.distributed as distributed

        if distributed.get_backend() == "nccl":
            torch.cuda.synchronize()  # what is still queued may wait for the others
        self._store = None
        # Gloo's thread takes Python's lock to let go of its last sum, and ending gloo waits for that thread with the lock held.
        time.sleep(RELEASE)
        distributed.destroy_process_group()

    @staticmethod
    def _heard(store: Store, key: str) -> bytes:
        # Not a wait of the store's own, which would keep signals from being noted.
        while not store.check([key]):
            time.sleep(PAUSE)
        return bytes(store.get(key))

    def _lost(self, error: RuntimeError) -> LostError:
        reason = " ".join(str(error).split())
        return LostError(
            f"process {self.rank} of {self.size} has lost the others, one of which has ended or hangs ({reason:.200}); "
            "see what it says, then go on with --resume"
        )


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Meet the other processes that torchrun has started, if any, for one run on ``device``."""
    if processes() == 1:
        yield Ranks()
        return
    ranks = _met(device)
    yield ranks
    ranks.leave()  # not after an error: whoever lost the others must not wait for them again


_meetings = 0


def _met(device: torch.device) -> Ranks:
    import torch.distributed as distributed
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    global _meetings
    _meetings += 1
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        meeting_place, rank, size = _meeting_place()
        # A name for each meeting: what was said in an earlier one is still there.
        store = PrefixStore(f"varsmooth.{_meetings}", meeting_place)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"process {_number('RANK')} of {processes()} could not meet the others: {error}; start them with torchrun"
        ) from None
    return Ranks(rank, size, PrefixStore("told", store))


@cache
def _meeting_place() -> tuple[Store, int, int]:
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    return store, rank, size


def _number(name: str, default: str | None = None) -> int:
    """Read a number that torchrun puts into the environment."""
    text = os.environ.get(name, default)
    try:
        return int(text or "")
    except ValueError:
        raise InputError(
            f"{name} in the environment is {text!r}, not a number: start several processes with torchrun, "
            "or unset WORLD_SIZE to train in one"
        ) from None
