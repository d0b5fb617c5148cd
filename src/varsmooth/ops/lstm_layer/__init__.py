"""Layers of an LSTM over a window; on a GPU by kernels that keep the recurrent matrix on chip."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from varsmooth.ops.lstm_layer import reference
from varsmooth.ops.lstm_layer.blocks import half_the_card, supported
from varsmooth.ops.lstm_layer.reference import Weights

__all__ = ["Weights", "half_the_card", "lstm_layers", "supported"]


def lstm_layers(
    layers: Sequence[Weights], inputs: Tensor, hidden0: Tensor, memory0: Tensor, updates: Sequence[Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run inputs [T, B, width] through the layers; return the outputs [T, B, H] and the last hidden and memory, in fp32.

    ``hidden0`` and ``memory0`` are [layers, B, H], as are those that come out. ``updates`` has for each layer what multiplies
    the candidates of its cells, fp32 [T, B, H]. States and updates are constants: no gradient flows into them, nor from the
    states that go out.
    """
    if not supported(layers[0].hh, inputs.shape[1]):
        return reference.lstm_layers(layers, inputs, hidden0, memory0, updates)
    from varsmooth.ops.lstm_layer import kernel

    return kernel.lstm_layers(layers, inputs, hidden0, memory0, updates)
