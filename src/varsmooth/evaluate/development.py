"""The development set, evaluated again and again while a network trains: on a GPU as CUDA graphs, with one wait at the end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from varsmooth.evaluate import output
from varsmooth.evaluate.columns import Columns
from varsmooth.evaluate.precision import full_precision
from varsmooth.evaluate.reading import Evaluation, bounded_window, read, recurrent_step
from varsmooth.model import RecurrentLanguageModel, State
from varsmooth.posterior import Predict
from varsmooth.train.captured import Captured


class DevelopmentSet:
    """Evaluates one network on one stream as ``evaluate`` does. ``captured`` None means: on a GPU."""

    def __init__(
        self,
        network: RecurrentLanguageModel,
        ids: Tensor,
        eos_id: int,
        *,
        predict: Predict = "mode",
        batch: int = 16,
        window: int = 128,
        burn_in: int = 64,
        captured: bool | None = None,
    ) -> None:
        self.network = network
        self.predict: Predict = predict
        self.window = window
        self.columns = Columns.cut(ids, eos_id, batch, burn_in, network.bias.device)
        self.captured = network.bias.is_cuda if captured is None else captured
        self._graphs: _CapturedPass | None = None

    def perplexity(self) -> float:
        """Return the perplexity of the weights as they are now."""
        return Evaluation(float(self.nll()), self.columns.tokens, self.predict).perplexity

    @torch.inference_mode()
    def nll(self) -> Tensor:
        """Return the mean loss, a float64 scalar on the device, without waiting for it."""
        with full_precision(self.network.bias.device):
            if self.captured:
                losses = self._captured_pass().token_nll()
            else:
                tables = self.network.tables(self.predict)
                losses = read(self.network, self.columns, tables, self.predict, self.window).token_nll()
            return losses.sum(dtype=torch.float64) / self.columns.tokens

    def _captured_pass(self) -> _CapturedPass:
        if self._graphs is None or not self._graphs.is_valid():
            self._graphs = _CapturedPass(self.network, self.columns, self.predict, self.window)
        return self._graphs


class _CapturedPass:
    """A pass over the columns in two graphs over the same tensors: one begins, the other reads a window, and is replayed.

    Made and used in inference mode. A graph keeps addresses, so it is valid only while every weight stays where it is; averages
    that are exchanged with the weights for each evaluation come to lie in the same place each time.
    """

    def __init__(self, network: RecurrentLanguageModel, columns: Columns, predict: Predict, window: int) -> None:
        self.network, self.columns, self.predict = network, columns, predict
        steps, batch = columns.shape
        # As many windows as asked for, of one length, so that one graph serves them all and the last has little padding.
        self.windows = -(-steps // bounded_window(network, batch, window))
        self.window = -(-steps // self.windows)
        padding = (0, 0, 0, self.windows * self.window - steps)
        self.inputs, self.targets = F.pad(columns.inputs, padding), F.pad(columns.targets, padding)
        device = network.bias.device
        self.rows = torch.arange(self.window, device=device)
        self.losses = torch.zeros(self.inputs.shape, device=device)
        self.state = network.initial_state(batch)
        self.tables = network.tables(predict)
        self.smoothing, self.addresses = network.smoothing, _addresses(network)
        self.begin, self.advance = Captured(self._begin), Captured(self._advance)

    def is_valid(self) -> bool:
        return self.smoothing is self.network.smoothing and self.addresses == _addresses(self.network)

    def token_nll(self) -> Tensor:
        """Return the loss of every token [tokens]; the next call may overwrite it."""
        self.begin()
        for _ in range(self.windows):
            self.advance()
        return self.columns.in_order(self.losses[: self.columns.shape[0]])

    def _begin(self) -> None:
        """Take the tables from the weights, and read what comes before the columns."""
        for kept, fresh in zip(self.tables, self.network.tables(self.predict), strict=True):
            if kept is not fresh:
                kept.copy_(fresh)
        torch.arange(self.window, out=self.rows)
        for part in self.state:
            part.zero_()
        self._keep(self.columns.warm(recurrent_step(self.network, self.tables.input), self.state, self.window))

    def _advance(self) -> None:
        """Read the next window of all columns and write its losses down."""
        inputs, targets = (part.index_select(0, self.rows) for part in (self.inputs, self.targets))
        hidden, state = self.network.stack(F.embedding(inputs, self.tables.input), self.state, None)
        self._keep(state)
        chunks = output.logit_chunks(hidden.flatten(0, 1), targets.flatten(), self.tables.output, self.network.bias)
        losses = torch.cat([output.target_nll(*chunk, temperature=1.0) for chunk in chunks])
        self.losses.index_copy_(0, self.rows, losses.view(inputs.shape))
        self.rows += self.window

    def _keep(self, state: State) -> None:
        for kept, fresh in zip(self.state, state, strict=True):
            if kept is not fresh:
                kept.copy_(fresh)


def _addresses(network: RecurrentLanguageModel) -> list[int]:
    return [tensor.data_ptr() for tensor in (*network.parameters(), *network.buffers())]
