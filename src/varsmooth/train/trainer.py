"""One training run in memory: a step at a time, and everything that a resumed run needs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from varsmooth.config import TrainConfig
from varsmooth.draws import DrawKey, Site, row_words
from varsmooth.errors import InputError
from varsmooth.model import RecurrentLanguageModel
from varsmooth.text.batches import Windows
from varsmooth.train.objective import Terms, objective
from varsmooth.train.schedule import Plateau, cosine

LEAST_GAIN = 1e-4
"""A share of the best perplexity; less is what a learning rate near zero still finds, and no reason to go on."""


class NotFiniteError(InputError):
    """The loss or its gradient is not a finite number."""


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
    """Steps a network through its text. A step is a function of the weights, the moments and the step number alone."""

    def __init__(self, network: RecurrentLanguageModel, ids: Tensor, settings: TrainConfig, device: torch.device) -> None:
        self.network = network.to(device)
        self.settings = settings
        self.device = device
        self.windows = Windows(ids.to(device), settings.batch, settings.window)
        self.progress = Progress()
        self.carried = network.initial_state(settings.batch)
        self.optimiser = _rmsprop(network, settings.lr)
        self.average = [p.detach().clone() for p in network.parameters()] if settings.average else []
        self._failed_at = torch.zeros((), dtype=torch.int64, device=device)
        # Added to on the device, so that no step waits, and never split, so that a resumed run rounds as one never stopped.
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)

    @property
    def steps_per_epoch(self) -> int:
        return self.windows.per_epoch

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        settings, progress = self.settings, self.progress
        factor = progress.lr_factor
        if settings.schedule == "cosine":
            factor *= cosine(progress.step, settings.steps, settings.final_lr_fraction)
        return settings.lr * factor

    def step(self) -> Terms:
        """Draw, descend, carry the state on; raises NotFiniteError before a bad gradient reaches the weights (on the CPU)."""
        progress, settings = self.progress, self.settings
        epoch, index = divmod(progress.step, self.steps_per_epoch)
        if index == 0:
            self.carried = self.network.initial_state(settings.batch)
        inputs, targets = self.windows.at(index, epoch_offset(settings.seed, epoch, settings.window))
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            terms, state = objective(
                self.network, inputs, targets, self.carried, DrawKey(settings.seed, progress.step), settings.l2
            )
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(terms.total)
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip)
        failed = (self._failed_at == 0) & ~torch.isfinite(norm + terms.total.detach())
        self._failed_at += failed * (progress.step + 1)
        if self.device.type == "cpu":
            self.check_finite()
        self.optimiser.step()
        self.carried = tuple(part.detach() for part in state)
        self._update_average()
        self._sums += torch.stack([part.detach().double() for part in (*terms, norm)])
        progress.windows += 1
        progress.step += 1
        return terms

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
        """Take note of a development perplexity; return whether it is the best so far, by more than nothing."""
        progress, settings = self.progress, self.settings
        gained = progress.best_step == 0 or perplexity < progress.best_perplexity * (1 - LEAST_GAIN)
        progress.since_best = 0 if gained else progress.since_best + 1
        if gained:
            progress.best_perplexity, progress.best_step = perplexity, progress.step
        if settings.schedule == "plateau":
            plateau = Plateau(settings.plateau_factor, settings.plateau_patience, progress.lr_factor, progress.lr_waited)
            plateau.observe(gained)
            progress.lr_factor, progress.lr_waited = plateau.factor, plateau.waited
        return gained

    def swap_average(self) -> None:
        """Exchange the weights and their moving average, where one is kept; a second call undoes the first."""
        for parameter, average in zip(self.network.parameters(), self.average, strict=False):
            parameter.data, average.data = average.data, parameter.data

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that a resumed run needs, by name."""
        moments = self.optimiser.state
        found = {f"carried.{i}": part for i, part in enumerate(self.carried)}
        for i, (name, parameter) in enumerate(self.network.named_parameters()):
            found[f"weight.{name}"] = parameter.detach()
            if parameter in moments:
                found[f"square.{name}"] = moments[parameter]["exp_avg_sq"]
            if self.average:
                found[f"average.{name}"] = self.average[i]
        return found

    def meta(self) -> dict[str, Any]:
        """Return every number that a resumed run needs."""
        return {"progress": asdict(self.progress), "sums": self._sums.tolist()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Go back to where ``tensors`` and ``meta`` were taken."""
        self.progress = Progress(**meta["progress"])
        self._sums.copy_(torch.tensor(meta["sums"], dtype=torch.float64))
        self.carried = tuple(tensors[f"carried.{i}"].to(self.device) for i in range(len(self.carried)))
        for i, (name, parameter) in enumerate(self.network.named_parameters()):
            parameter.copy_(tensors[f"weight.{name}"])
            if self.average:
                self.average[i].copy_(tensors[f"average.{name}"])
            if f"square.{name}" in tensors:
                self.optimiser.state[parameter] = {
                    "step": torch.tensor(float(self.progress.step), device=self.device),
                    "exp_avg": torch.zeros_like(parameter),  # beta1 = 0: the first moment is the gradient, nothing is kept
                    "exp_avg_sq": tensors[f"square.{name}"].to(self.device),
                }

    @torch.no_grad()
    def _update_average(self) -> None:
        if self.average:
            # Early on the average follows the weights closely, so that it does not remember how they started.
            decay = min(self.settings.average, (1 + self.progress.step) / (10 + self.progress.step))
            torch._foreach_lerp_(self.average, [p.detach() for p in self.network.parameters()], 1 - decay)


def epoch_offset(seed: int, epoch: int, window: int) -> int:
    """Return where an epoch starts: a random place within one window."""
    word = row_words(DrawKey(seed, epoch, Site.OFFSET), torch.zeros((), dtype=torch.int64))[0]
    return int(word) * window >> 32


def _rmsprop(network: RecurrentLanguageModel, lr: float) -> torch.optim.Adam:
    """RMSprop with bias correction, as the authors' trainer has it: Adam without a first moment."""
    return torch.optim.Adam(network.parameters(), lr=lr, betas=(0.0, 0.999), eps=1e-8, fused=True)
