"""What is random about the recurrent matrices: dropout in three kinds, and Gaussian noise (docs/maths.md, section 8).

A stack has the matrices ih_0, hh_0, ih_1, hh_1, ...; matrix m is ``weight_ih[m // 2]`` or ``weight_hh[m // 2]``. Coordinates:

| draw | sequence | position | word | dimension |
|---|---|---|---|---|
| rows | 0, or the sequence in sequence scope | matrix | 0 | unit |
| dropconnect | 0 | matrix | row of the matrix | column |
| update | sequence | time step | layer | unit |
| variance | 0 | matrix | row of the matrix | column |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from varsmooth.draws import DrawKey, Site, Words, normals_of_rows, row_words
from varsmooth.errors import InputError, check_choice
from varsmooth.ops.draw_matrices import Dropout, column_factors

RecurrentKind = Literal["rows", "dropconnect", "update"]
RecurrentScope = Literal["batch", "sequence"]


@dataclass(frozen=True)
class RecurrentNoise:
    """q(R): inverted dropout at rate ``dropout`` of one ``kind``, and Gaussian noise of ``variance`` on every matrix.

    ``rows`` drops the weights that leave one hidden unit towards one matrix: a column of torch's ``weight_hh``, and of
    ``weight_ih`` above the first layer. ``scope`` says whether the batch shares its choice or each sequence makes its own.
    ``dropconnect`` drops single elements of ``weight_hh``. Both are fixed over a window. ``update`` drops the candidate of a
    cell, afresh at every step of every sequence whatever the scope.
    """

    dropout: float
    kind: RecurrentKind
    scope: RecurrentScope
    variance: float
    dropping: Dropout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0 <= self.variance < float("inf"):
            raise InputError(f"variance must be finite and at least 0, got {self.variance}")
        check_choice("dropout_kind", self.kind, get_args(RecurrentKind))
        check_choice("dropout_scope", self.scope, get_args(RecurrentScope))
        if self.kind == "dropconnect" and self.scope == "sequence":
            raise InputError(
                "dropout_kind 'dropconnect' has no dropout_scope 'sequence'; use dropout_scope 'batch' or dropout_kind 'rows'"
            )
        object.__setattr__(self, "dropping", Dropout(self.dropout))

    @property
    def fused(self) -> bool:
        """Whether one fused call can run a window: all sequences share the matrices, and no update is dropped."""
        return self.shares_matrices and not self.drops_updates

    @property
    def shares_matrices(self) -> bool:
        """Whether all sequences have the same draw of the matrices."""
        return self.dropout == 0 or self.kind == "update" or self.scope == "batch"

    @property
    def drops_updates(self) -> bool:
        """Whether the candidates of cells are dropped."""
        return self.dropout > 0 and self.kind == "update"

    @property
    def columns_only(self) -> bool:
        """Whether a draw does no more than drop columns for the whole batch, which ``draw_matrices`` does in one launch."""
        return self.variance == 0 and (self.dropout == 0 or (self.kind == "rows" and self.scope == "batch"))

    def matrix_factors(self, key: DrawKey, matrices: list[Tensor], sequences: Tensor) -> list[Tensor | None]:
        """Return for each matrix what multiplies its columns, [1, width] or [B, width], or its elements, [rows, width]."""
        factors: list[Tensor | None] = [None] * len(matrices)
        if self.dropout == 0 or self.kind == "update":
            return factors
        key = key.at(Site.RECURRENT)
        if self.kind == "rows":
            factors[1:] = column_factors(self.dropping, key, matrices, None if self.scope == "batch" else sequences)
        else:
            factors[1::2] = self._element_factors(key, matrices)
        return factors

    def update_factors(self, key: DrawKey, matrices: list[Tensor], sequences: Tensor, steps: int) -> list[Tensor]:
        """Return for each layer what multiplies the candidates of its cells, [T, B, width]; for ``drops_updates`` alone."""
        layers = len(matrices) // 2
        position = torch.arange(steps, device=sequences.device)[:, None]
        layer = torch.arange(layers, device=sequences.device)[:, None, None]
        words = row_words(key.at(Site.RECURRENT), layer, sequences, position)
        return [self._factor(_of_row(words, n), matrices[0]) for n in range(layers)]

    def gaussians(self, key: DrawKey, matrices: list[Tensor]) -> list[Tensor | None]:
        """Return for each matrix what is added to it; dropout does not scale it."""
        if self.variance == 0:
            return [None] * len(matrices)
        words = _matrix_words(key.at(Site.RECURRENT_VARIANCE), matrices)
        normals = [normals_of_rows(_of_row(words, m), matrix.shape[-1]).to(matrix) for m, matrix in enumerate(matrices)]
        return [self.variance**0.5 * each for each in normals]

    def _element_factors(self, key: DrawKey, matrices: list[Tensor]) -> list[Tensor]:
        words = _matrix_words(key, matrices)
        return [self._factor(_of_row(words, m), matrices[m]) for m in range(1, len(matrices), 2)]

    def _factor(self, words: Words, like: Tensor) -> Tensor:
        return self.dropping.factor(words, like.shape[-1], like.dtype)


def _matrix_words(key: DrawKey, matrices: list[Tensor]) -> Words:
    """Return the words of every row of every matrix, each [matrices, rows]."""
    device = matrices[0].device
    position = torch.arange(len(matrices), device=device)[:, None]
    return row_words(key, torch.arange(len(matrices[0]), device=device), 0, position)


def _of_row(words: Words, index: int) -> Words:
    w0, w1, w2, w3 = (word[index] for word in words)
    return w0, w1, w2, w3
