"""Full float32 on a GPU: published figures are not to depend on a speed setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Within this block float32 products on ``device`` are exact; cuDNN would round their factors to TF32's 10 bits."""
    if device.type != "cuda":
        yield
        return
    switches: tuple[Any, ...] = (torch.backends.cudnn.rnn, torch.backends.cuda.matmul)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
