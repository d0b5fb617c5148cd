"""The Trainer of transformers with smoothing: the KL in the loss, and draws that a resumed run repeats."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from varsmooth.dropin import SmoothingHandle
from varsmooth.errors import InputError


class SmoothingCallback(TrainerCallback):
    """Keeps the draws at the Trainer's step: the one it starts or resumes at, and each one after."""

    def __init__(self, handle: SmoothingHandle) -> None:
        self.handle = handle

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        del args, control
        tables = {id(part.module) for part in self.handle.parts}
        model: nn.Module | None = kwargs.get("model")
        if self.handle.removed or (model is not None and not any(id(module) in tables for module in model.modules())):
            raise InputError(
                "handle does not smooth the model that the Trainer trains: it was removed, or is of another model "
                "(model_init= makes a new one); give the Trainer the model that you called smooth() with"
            )
        self.handle.step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep to the Trainer's count where the optimiser's steps were not noticed, or one was left out (float16)."""
        del args, control, kwargs
        if self.handle.current_step != state.global_step:
            self.handle.step(state.global_step)


class SmoothingMixin:
    """Put before any Trainer class: ``class Mine(SmoothingMixin, Trainer)``.

    ``handle`` is what ``smooth`` returned for the Trainer's model; ``kl_weight`` is what its KL counts in the loss: lambda / T
    for a mean over tokens of windows of T words. Weight decay on the tables would count them twice.
    """

    def __init__(self, *args: Any, handle: SmoothingHandle, kl_weight: float = 0.0, **kwargs: Any) -> None:
        if not 0 <= kl_weight < math.inf:
            raise InputError(f"kl_weight must be at least 0 and finite, got {kl_weight}")
        super().__init__(*args, **kwargs)
        self.handle, self.kl_weight = handle, kl_weight
        self.add_callback(SmoothingCallback(handle))  # type: ignore[attr-defined]

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Any]:
        found = super().compute_loss(model, inputs, return_outputs=True, **kwargs)  # type: ignore[misc]
        loss: Tensor = found[0]
        if self.kl_weight > 0 and model.training:
            loss = loss + self.kl_weight * self._share(kwargs.get("num_items_in_batch")) * self.handle.kl()
        return (loss, found[1]) if return_outputs else loss

    def _share(self, num_items_in_batch: Any) -> float:
        """The part of the KL that one micro-batch adds: the Trainer divides losses itself unless they are scaled already."""
        trainer: Any = self
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)  # transformers has it since 5.19
        if scaled is None:
            counted = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = counted or trainer.compute_loss_func is not None
        return 1 / trainer.current_gradient_accumulation_steps if scaled else 1.0


class SmoothingTrainer(SmoothingMixin, Trainer):  # type: ignore[misc]  # fewer arguments by name, the same calls
    """``Trainer`` with ``handle`` and ``kl_weight``."""
