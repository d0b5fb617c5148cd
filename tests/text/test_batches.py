from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from varsmooth.text.batches import Windows


@given(st.integers(2, 200), st.integers(1, 12), st.integers(1, 20), st.integers(0, 300))
def test_an_epoch_has_every_token_as_a_target_and_no_gap(tokens, batch, window, offset):
    ids = torch.arange(tokens)
    if batch > tokens or window > -(-tokens // batch):
        with pytest.raises(ValueError, match=r"train\.(window|batch)"):
            Windows(ids, batch, window)
        return
    windows = Windows(ids, batch, window)
    pieces = [windows.at(index, offset) for index in range(windows.per_epoch)]
    inputs, targets = (torch.cat(half) for half in zip(*pieces, strict=True))
    assert set(targets.flatten().tolist()) == set(range(tokens))
    assert torch.equal((inputs + 1) % tokens, targets)
    assert torch.equal(inputs[1:], targets[:-1]), "state is carried down a column, so the columns have no gap"
    assert targets.shape[0] - windows.column < window


def test_columns_start_evenly_and_the_offset_moves_them():
    windows = Windows(torch.arange(100), 4, 5)
    assert windows.at(0)[0][0].tolist() == [0, 25, 50, 75]
    assert windows.at(1, offset=3)[0][0].tolist() == [8, 33, 58, 83]
    assert windows.at(0, offset=99)[1][0].tolist() == [0, 25, 50, 75]


@pytest.mark.parametrize(("batch", "window", "culprit"), [(11, 1, "train.batch = 11"), (2, 6, "train.window = 6"), (0, 1, "1")])
def test_impossible_shapes_name_the_flag(batch, window, culprit):
    with pytest.raises(ValueError, match=culprit):
        Windows(torch.arange(10), batch, window)
