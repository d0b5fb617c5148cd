"""One step of the optimiser, the penalty, the clipping and the moving average in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from varsmooth.ops.backend import kernels_for
from varsmooth.ops.descend import reference
from varsmooth.ops.descend.descent import BETA2, EPSILON, Descent, bias_correction

__all__ = ["BETA2", "EPSILON", "Descent", "bias_correction", "descend"]


@torch.no_grad()
def descend(
    descent: Descent, gradients: Sequence[Tensor], lr: Tensor, correction: Tensor, average_step: Tensor
) -> tuple[Tensor, Tensor]:
    """Take one step in place; return the norm of the full gradient before clipping, and the old weights' kl before lambda.

    ``gradients`` are those of the nll alone, float32 or bfloat16, and are left as they are. ``lr``, ``correction``
    (``bias_correction`` of the step) and ``average_step`` (1 - decay; unused without averages) are 0-d float32 on the device
    of the parameters. With c the weight of a parameter's row:

        g = gradient + l2 * c * w;    norm = |all g|;    g = g * min(1, clip / (norm + 1e-6))
        v = beta2 * v + (1 - beta2) * g^2;    w = w - lr * g / (sqrt(v * correction) + eps)
        average = average + average_step * (w - average);    kl = 0.5 * sum c * w^2

    Where the norm is not finite nothing is changed: the caller learns it from the norm. Nothing waits for the device.
    """
    gradients = descent.checked(gradients)
    if kernels_for(descent.parameters[0]):
        from varsmooth.ops.descend import kernel

        return kernel.descend(descent, gradients, lr, correction, average_step)
    return reference.descend(descent, gradients, lr, correction, average_step)
