"""Several runs on one card: a stream and a graph each, stepped in turn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from varsmooth.ops.lstm_layer import half_the_card
from varsmooth.train.trainer import Trainer


class Fleet:
    """Steps trainers in turn, each on a stream of its own where there are streams."""

    def __init__(self, trainers: Sequence[Trainer], device: torch.device) -> None:
        self.trainers = trainers
        self.device = device
        on_gpu = device.type == "cuda"
        self.streams = [torch.cuda.Stream(device) if on_gpu else None for _ in trainers]  # type: ignore[no-untyped-call]

    def run(self, rounds: int, members: int | None = None) -> None:
        """Let the first ``members`` (all) take some steps between two meetings with the caller's stream.

        In between no trainer waits for another.
        """
        crew = list(zip(self.trainers, self.streams, strict=True))[:members]
        caller = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        for _, stream in crew:
            _wait(stream, caller)
        with half_the_card() if len(self.trainers) > 1 else nullcontext():
            for _ in range(rounds):
                for trainer, stream in crew:
                    with torch.cuda.stream(stream):  # does nothing for None
                        trainer.step()
        for _, stream in crew:
            _wait(caller, stream)


def _wait(waiting: torch.cuda.Stream | None, other: torch.cuda.Stream | None) -> None:
    if waiting is not None and other is not None:
        waiting.wait_stream(other)
