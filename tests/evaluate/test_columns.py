from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth import InputError
from varsmooth.evaluate.columns import Columns

CPU = torch.device("cpu")


def echo(inputs, state, index):
    """Outputs are the inputs, and the state sums them."""
    return inputs.float(), tuple(part + inputs.sum(0).float()[None, :, None] for part in state)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 400), st.integers(1, 50), st.integers(0, 120))
def test_every_token_is_read_once_after_the_one_before_it(tokens, batch, window, burn_in):
    """Words are numbered by their place, and the made-up outputs are the inputs."""
    columns = Columns.cut(torch.arange(1, tokens + 1), 0, batch, burn_in, CPU)
    steps, width = columns.shape
    assert width <= batch
    assert steps * (width - 1) < tokens <= steps * width
    read = list(columns.read(echo, (torch.zeros(1, width, 1),), window))
    assert all(len(outputs) == window for outputs in read[:-1])
    assert len(read[-1]) <= window
    assert columns.in_order(torch.cat(read)).tolist() == list(range(tokens))
    assert columns.in_order(columns.targets).tolist() == list(range(1, tokens + 1))


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 20), st.integers(0, 40))
def test_columns_read_what_comes_before_them_and_the_first_starts_from_nothing(tokens, batch, window, burn_in):
    columns = Columns.cut(torch.arange(1, tokens + 1), 0, batch, burn_in, CPU)
    steps, width = columns.shape
    (state,) = columns.warm(echo, (torch.zeros(1, width, 1),), window)
    expected = [float(sum(range(start - min(burn_in, steps), start))) for start in range(steps, steps * width, steps)]
    assert state[0, :, 0].tolist() == [0.0, *expected]


def test_the_windows_are_numbered_from_1_and_the_burn_in_is_0():
    numbers = []

    def step(inputs, state, index):
        numbers.append((index, len(inputs)))
        return echo(inputs, state, index)

    columns = Columns.cut(torch.arange(1, 31), 0, 3, 5, CPU)
    list(columns.read(step, (torch.zeros(1, 3, 1),), 4))
    assert numbers == [(0, 4), (0, 1), (1, 4), (2, 4), (3, 2)]


def test_figures_of_several_kinds_are_put_in_order_too():
    columns = Columns.cut(torch.arange(1, 6), 0, 2, 0, CPU)
    assert columns.shape == (3, 2)
    figures = torch.stack([columns.targets, 10 * columns.targets])
    assert columns.in_order(figures).tolist() == [[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]


def test_nothing_is_refused():
    with pytest.raises(InputError, match="no token"):
        Columns.cut(torch.tensor([], dtype=torch.int64), 0, 1, 0, CPU)
