"""One LSTM layer over a window, from its projected inputs; on a GPU a kernel that keeps the recurrent matrix on chip."""

from __future__ import annotations

from torch import Tensor

from varsmooth.ops.lstm_layer import reference
from varsmooth.ops.lstm_layer.blocks import supported

__all__ = ["lstm_layer", "supported"]


def lstm_layer(projected: Tensor, weight: Tensor, hidden0: Tensor, memory0: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden [T, B, H] and the last memory [B, H] in fp32, differentiable in ``projected`` and ``weight`` only.

    ``projected`` [T, B, 4 * H] is ``inputs @ weight_ih.T + bias`` with torch's gates i, f, g, o; ``weight`` [4 * H, H] is the
    recurrent matrix. The state that comes in is a constant, and no gradient flows through the memory that goes out.
    """
    if not supported(projected, weight):
        return reference.lstm_layer(projected, weight, hidden0, memory0)
    from varsmooth.ops.lstm_layer import kernel

    return kernel.lstm_layer(projected, weight, hidden0, memory0)
