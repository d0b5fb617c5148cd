from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Allocator = Callable[..., Tensor]


def poisoned(allocate: Allocator) -> Allocator:
    def allocated(*arguments: Any, **options: Any) -> Tensor:
        memory = allocate(*arguments, **options)
        with torch.no_grad():
            if memory.is_floating_point():
                return memory.fill_(float("nan"))
            return memory if memory.dtype == torch.bool else memory.fill_(torch.iinfo(memory.dtype).max)

    return allocated


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an operation leaves unwritten is NaN, or a number that no table has a row for."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
