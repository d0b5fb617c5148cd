"""One training run in memory: a step at a time, and everything that a resumed run needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varsmooth.config import TrainConfig
from varsmooth.draws import DrawKey, Site, row_words
from varsmooth.errors import InputError
from varsmooth.model import RecurrentLanguageModel, State
from varsmooth.ops.descend import Descent, bias_correction, descend
from varsmooth.ops.tally import tally
from varsmooth.text.batches import Windows
from varsmooth.train.captured import way_to_step
from varsmooth.train.parallel import Ranks
from varsmooth.train.schedule import after_plateau, cosine, warm_up
from varsmooth.train.shares import Shares, checksum
from varsmooth.train.timetable import Moment, Timetable

LEAST_GAIN = 1e-4
"""A share of the best perplexity; less is what a learning rate near zero still finds, and no reason to go on."""


class NotFiniteError(InputError):
    """The loss or its gradient is not a finite number."""


class Terms(NamedTuple):
    """The objective of one window (docs/maths.md, eq. 10) and its parts; ``total`` = ``nll`` + lambda * ``kl``."""

    nll: Tensor
    """mean over the batch of the sum over time, in nats"""
    kl: Tensor
    """half the weighted squared norm of the parameters, before lambda"""
    total: Tensor


@dataclass
class Progress:
    """Where a run stands; all of it is written into the state files."""

    step: int = 0
    best_perplexity: float = math.inf
    best_step: int = 0
    since_best: int = 0
    lr_factor: float = 1.0
    lr_waited: int = 0
    windows: int = 0
    """steps since the last evaluation"""


class Trainer:
    """Steps a network through its text. A step is a function of weights, moments, carried state and step number alone.

    Everything that a step reads and writes lies in tensors whose places never change, so that on a GPU it is captured once as
    a CUDA graph and replayed; the host only counts. Of several ``ranks`` each holds all weights and its columns of the batch.
    """

    def __init__(
        self,
        network: RecurrentLanguageModel,
        ids: Tensor,
        settings: TrainConfig,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        self.network = network.to(device)
        self.settings = settings
        self.device = device
        self.ranks = ranks or Ranks()
        self.columns = self.ranks.columns(settings.batch)
        self.windows = Windows(ids.to(device), settings.batch, settings.window, self.columns)
        self.progress = Progress()
        self.carried = network.initial_state(len(self.columns))
        self._whole_carried: tuple[int, State] | None = None
        self.parameters = list(network.parameters())
        self.shares = Shares(self.ranks, self.parameters) if self.ranks.size > 1 else None
        self.descent = Descent.start(
            self.parameters, network.row_weights(), l2=settings.l2, clip=settings.clip, averaged=settings.average > 0
        )
        self.average = self.descent.averages
        self.timetable = Timetable(device)
        self._failed_at = torch.zeros((), dtype=torch.int64, device=device)
        # Added to on the device, so that no step waits, and never split, so that a resumed run rounds as one never stopped.
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)
        self._take_step = way_to_step(self._step, settings, device, self.ranks.size)

    @property
    def steps_per_epoch(self) -> int:
        return self.windows.per_epoch

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._lr(self.progress.step)

    def step(self) -> Terms:
        """Draw, descend, carry the state on; a gradient that is not finite changes no weight and raises, on a GPU later.

        On a GPU the next step overwrites the terms.
        """
        self.timetable.prepare(self.progress.step, self._moment)
        if self.shares is not None:
            self.shares.note_signal()
        terms = self._take_step()
        if self.device.type == "cpu":
            self.check_finite()
        self.progress.windows += 1
        self.progress.step += 1
        if self.shares is not None:
            self._meet(self.shares)
        return terms

    def _meet(self, shares: Shares) -> None:
        """What all processes do after a step, whether or not the first then finds the time to save."""
        shares.heed_signals(self.progress.step)
        if self.progress.step % self.settings.save_every == 0:
            self.check_finite()
            self._join_carried()

    def _step(self) -> Terms:
        """Take the step at the timetable's cursor, without a word from the host."""
        now, settings = self.timetable.now(), self.settings
        inputs, targets = self.windows.starting_at(now.start)
        state = tuple(part * now.keep for part in self.carried)
        # No cache: in a captured step it would hold on to tensors of the capture.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bf16", cache_enabled=False):
            loss, state = self.network.loss(inputs, targets, state, DrawKey(settings.seed, now.step), self.columns.start)
        nll = loss.total / settings.batch
        gradients: Sequence[Tensor] = torch.autograd.grad(nll, self.parameters)
        nll = nll.detach()
        with torch.no_grad():
            if self.shares is not None:
                nll, gradients = self.shares.summed(nll, gradients)
            norm, kl = descend(self.descent, gradients, now.lr, now.correction, now.average_step)
            total = tally(self._sums, self._failed_at, nll, kl, norm, now.step, settings.l2)
            for kept, part in zip(self.carried, state, strict=True):
                kept.copy_(part)
            self.timetable.advance()
        return Terms(nll, kl, total)

    def _moment(self, step: int) -> Moment[int, float]:
        settings = self.settings
        epoch, index = divmod(step, self.steps_per_epoch)
        # Early on the average follows the weights closely, so that it does not remember how they started.
        decay = min(settings.average, (1 + step) / (10 + step))
        return Moment(
            step=step,
            start=epoch_offset(settings.seed, epoch, settings.window) + index * settings.window,
            lr=self._lr(step),
            correction=bias_correction(step + 1),
            average_step=1 - decay,
            keep=0.0 if index == 0 else 1.0,
        )

    def _lr(self, step: int) -> float:
        settings = self.settings
        factor = self.progress.lr_factor
        if settings.schedule == "cosine":
            factor *= cosine(step, settings.steps, settings.final_lr_fraction)
        factor *= warm_up(step, settings.warm_up)
        return settings.lr * factor

    def check_finite(self) -> None:
        """Raise if any gradient since the start was not finite; on a GPU this waits, so it is asked only now and then."""
        if step := int(self._failed_at):
            raise NotFiniteError(
                f"the loss or its gradient is not finite at step {step}: "
                f"lower train.lr (now {self.settings.lr:g}) or train.clip (now {self.settings.clip:g})"
                + (", or use train.precision=fp32" if self.settings.precision != "fp32" else "")
            )

    def take_means(self) -> dict[str, float]:
        """Return the means of the objective's terms since this was last asked, and start again; nll is per token."""
        nll, kl, total, norm = (self._sums / max(self.progress.windows, 1)).tolist()
        self._sums.zero_()
        self.progress.windows = 0
        return {"nll": nll / self.settings.window, "kl": kl, "total": total, "grad_norm": norm}

    def observe(self, perplexity: float) -> bool:
        """Take note of a development perplexity; return whether it is the best so far, by more than ``LEAST_GAIN`` of it."""
        progress, settings = self.progress, self.settings
        gained = progress.best_step == 0 or perplexity < progress.best_perplexity * (1 - LEAST_GAIN)
        progress.since_best = 0 if gained else progress.since_best + 1
        if gained:
            progress.best_perplexity, progress.best_step = perplexity, progress.step
        if settings.schedule == "plateau":
            before, (decay, patience) = progress.lr_factor, (settings.plateau_factor, settings.plateau_patience)
            progress.lr_factor, progress.lr_waited = after_plateau(before, progress.lr_waited, gained, decay, patience)
            if progress.lr_factor != before:
                self.timetable.forget()
        return gained

    def forget_best(self) -> None:
        """Take the next development perplexity for the best, and for a gain: so does a schedule that waits for one."""
        self.progress.best_perplexity, self.progress.best_step, self.progress.since_best = math.inf, 0, 0

    def swap_average(self) -> None:
        """Exchange the weights and their moving average, where one is kept; a second call undoes the first."""
        for parameter, average in zip(self.network.parameters(), self.average, strict=False):
            parameter.data, average.data = average.data, parameter.data

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that a resumed run needs, by name; they change with the next step.

        All processes of a run ask at the same step, as each has only its columns of the carried state.
        """
        carried = self.carried if self.shares is None else self._join_carried()
        return {**_named(carried), **self._shared_tensors()}

    def _join_carried(self) -> State:
        """Return the carried state of the whole batch; the processes meet for it once a step at most."""
        if self._whole_carried is None or self._whole_carried[0] != self.progress.step:
            self._whole_carried = self.progress.step, tuple(self.ranks.join_columns(part) for part in self.carried)
        return self._whole_carried[1]

    def _shared_tensors(self) -> dict[str, Tensor]:
        """Return what every process holds alike: weights, second moments and averages."""
        found = {}
        for i, (name, parameter) in enumerate(self.network.named_parameters()):
            found[f"weight.{name}"] = parameter.detach()
            found[f"square.{name}"] = self.descent.squares[i]
            if self.average:
                found[f"average.{name}"] = self.average[i]
        return found

    def checksum(self) -> list[int]:
        """Return what is the same on every process of a run, as long as all is well."""
        return checksum(list(self._shared_tensors().values()))

    def meta(self) -> dict[str, Any]:
        """Return every number that a resumed run needs."""
        return {"progress": asdict(self.progress), "sums": self._sums.tolist()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Go back to where ``tensors`` and ``meta`` were taken, by a run of the same configuration."""
        kept, carried = self._shared_tensors(), _named(self.carried)
        if differing := sorted(tensors.keys() ^ {**kept, **carried}.keys()):
            raise InputError(
                f"the saved state and the configuration do not fit: {differing[0]!r} is in one of them alone; "
                "a run goes on with the configuration that it was begun with"
            )
        self.progress = Progress(**meta["progress"])
        self.timetable.forget()
        self._sums.copy_(torch.tensor(meta["sums"], dtype=torch.float64))
        self._whole_carried = None
        for name, tensor in tensors.items():
            if name in carried:
                carried[name].copy_(tensor[:, self.columns.start : self.columns.stop])
            else:
                kept[name].copy_(tensor)


@lru_cache(maxsize=16)
def epoch_offset(seed: int, epoch: int, window: int) -> int:
    """Return where an epoch starts: a random place within one window."""
    word = row_words(DrawKey(seed, epoch, Site.OFFSET), torch.zeros((), dtype=torch.int64))[0]
    return int(word) * window >> 32


def _named(carried: State) -> dict[str, Tensor]:
    return {f"carried.{i}": part for i, part in enumerate(carried)}
