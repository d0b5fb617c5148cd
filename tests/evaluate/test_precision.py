from __future__ import annotations

import pytest
import torch

from varsmooth.evaluate.precision import full_precision

CUDA = torch.device("cuda")


def switches() -> tuple[str, str]:
    return torch.backends.cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision


def test_float32_is_exact_within_and_as_it_was_after():
    before = switches()
    assert before[0] == "tf32", "what this is for: cuDNN's own default"
    with full_precision(CUDA):
        assert switches() == ("ieee", "ieee")
    assert switches() == before
    with pytest.raises(KeyError), full_precision(CUDA):
        raise KeyError
    assert switches() == before


def test_what_was_set_the_old_way_is_still_set():
    """The old names of the switches complain about a state that they cannot express."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with full_precision(CUDA):
            assert switches() == ("ieee", "ieee")
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_the_cpu_has_nothing_to_switch():
    before = switches()
    with full_precision(torch.device("cpu")):
        assert switches() == before
