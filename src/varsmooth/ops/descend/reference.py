"""One step of the optimiser in stock operations: the definition, and the path on a CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from varsmooth.ops.descend.descent import BETA2, EPSILON, Descent


def descend(
    descent: Descent, gradients: list[Tensor], lr: Tensor, correction: Tensor, average_step: Tensor
) -> tuple[Tensor, Tensor]:
    """As ``varsmooth.ops.descend.descend`` says; never waits for the device either."""
    full, kl = descent.scratch, _kl(descent)
    for i, parameter in enumerate(descent.parameters):
        torch.addcmul(gradients[i], _broadcast(descent.row_weights[i], parameter), parameter, value=descent.l2, out=full[i])
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(full)))
    finite = norm.isfinite()
    _adam(descent, full, lr, correction, shrink=((norm + 1e-6) / descent.clip).clamp(min=1), refused=~finite)
    if descent.averages:
        # Where nothing may change the average moves to itself: towards a broken weight even a step of 0 would break it.
        for parameter, average, towards in zip(descent.parameters, descent.averages, full, strict=True):
            average.lerp_(torch.where(finite, parameter, average, out=towards), average_step)
    return norm, kl


def _kl(descent: Descent) -> Tensor:
    parts = []
    for parameter, weights in zip(descent.parameters, descent.row_weights, strict=True):
        if weights is None:
            parts.append(torch.linalg.vector_norm(parameter).square())
        else:
            rows = parameter.view(len(weights), parameter.shape[1:].numel())
            parts.append((weights * torch.linalg.vector_norm(rows, dim=1).square()).sum())
    return 0.5 * torch.stack(parts).sum()


def _broadcast(weights: Tensor | None, parameter: Tensor) -> Tensor:
    """Return the row weights in a shape that multiplies the parameter; ones and None round alike."""
    return parameter.new_ones(()) if weights is None else weights.view(-1, *[1] * (parameter.dim() - 1))


def _adam(descent: Descent, full: list[Tensor], lr: Tensor, correction: Tensor, *, shrink: Tensor, refused: Tensor) -> None:
    """Torch's fused Adam without a first moment: with beta1 = 0 that is the gradient, so one buffer serves as both."""
    # It wants the step's number, for nothing but this correction; a correction of exactly 1 is step infinity.
    step = (torch.log1p(-1 / correction.double()) / math.log(BETA2)).float()
    torch._fused_adam_(
        descent.parameters,
        full,
        full,
        descent.squares,
        [],
        [step] * len(full),
        lr=lr,
        beta1=0.0,
        beta2=BETA2,
        weight_decay=0.0,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
        grad_scale=shrink,
        found_inf=refused.float(),
    )
