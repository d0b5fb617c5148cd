"""Which draw a forward pass sees: the step, and which columns of the global batch it holds.

The rule: the step advances when an optimiser that trains the model has stepped; until then every forward pass is a further
part of the same batch. So two micro-batches draw what one batch of both would draw, and processes what one process would.
A pass that runs inside backward is a recomputation (activation checkpointing): it sees the draw of the pass it repeats, or is
refused where a later pass or step has taken its place.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from varsmooth.draws import DrawKey, Integers
from varsmooth.errors import InputError
from varsmooth.posterior import Scope

Function = TypeVar("Function", bound=Callable[..., Any])
UNNOTICED = 10
"""Steps of optimisers that hold nothing of the model, each after a draw, until a warning tells that none was noticed."""


@dataclass(eq=False)
class Window:
    """One forward pass: what its draws are keyed by, and what the head must know of the input."""

    key: DrawKey
    first_node: int
    """autograd numbers its nodes as it makes them: no node of this pass has a lower number"""
    first_node_of_step: int
    first_sequence: int = 0
    columns: int = 0
    lookups: int = 0
    labels: Tensor | None = None
    replaced: Tensor | None = field(default=None, repr=False)


@dataclass(eq=False)
class Clock:
    """Counts steps, and within a step the columns that were drawn for."""

    seed: int
    embedding: nn.Module
    model: nn.Module | None = None
    """the whole; None in a part of it that was pickled alone"""
    by_hand: bool = False
    processes: tuple[int, int] | None = None
    step: Integers = 0
    sequences: int = 0
    window: Window | None = None
    inside: bool = False
    """whether the model's own forward is running"""
    never_drawn: set[str] = field(default_factory=set)
    """names of the tables that no forward pass has drawn yet"""
    given_labels: Tensor | None = field(default=None, repr=False)
    """of the next forward pass"""
    pending: bool = False
    """whether the next forward pass begins the next step"""
    _moved: bool = False
    _noticed: bool = False
    _drawn_since: bool = False
    _unnoticed: int = 0
    _passes: int = 0
    _recomputed: bool = False
    _nodes_before: int = 0
    """made by autograd when a pass last began or ended"""

    def begin(self) -> Window:
        """Start the window of a forward pass."""
        _CLOCKS.add(self)  # here, so that the clock of a copied model is known too
        self.settle()
        self._moved = self._drawn_since = True
        self._passes = 1 if self._recomputed else self._passes + 1
        self._recomputed = False
        first = self._first_node()
        first_of_step = first if self.window is None else min(first, self.window.first_node_of_step)
        self.window = Window(DrawKey(self.seed, self.step), first, first_of_step, labels=self.given_labels)
        self.given_labels = None
        return self.window

    def end(self) -> None:
        """The model's own forward has ended."""
        self.inside, self._nodes_before = False, _nodes_made()

    def columns(self, count: int, scope: Scope) -> tuple[Window, int]:
        """Return the window of a look-up of ``count`` sequences, and the first of them in the global batch.

        The look-ups of one forward pass (an encoder's, its decoder's) see the same columns, but for
        those of position scope, which could not be told apart.
        """
        if recomputing():
            return self._columns_again(scope)
        window = self.window if self.inside and self.window is not None else self.begin()
        rank, size = self.processes or _processes()
        if window.lookups == 0 or scope == "position":
            window.first_sequence, window.columns = self.sequences + rank * count, 0
        window.lookups += 1
        if count > window.columns and not isinstance(self.step, Tensor):
            self.sequences += (count - window.columns) * size
        window.columns = max(window.columns, count)
        return window, window.first_sequence

    def _columns_again(self, scope: Scope) -> tuple[Window, int]:
        window = self._repeated(own=scope != "batch")
        if window.lookups > 1 and scope == "position":
            raise InputError(
                "a checkpointed embedding is recomputed after several look-ups, and which one cannot be told; "
                "leave the embedding out of the checkpoint, or use another scope than 'position'"
            )
        return window, window.first_sequence

    def current(self, *, with_labels: bool) -> Window:
        """Return the window that a head belongs to; ``with_labels``: its own, not just one of the same step."""
        if recomputing():
            return self._repeated(own=with_labels)
        return self.begin() if self.window is None else self.window

    def settle(self) -> None:
        """Begin the step that is pending, if one is."""
        if self.pending:
            self.advance()

    def advance(self) -> None:
        self._tell_of_idle_tables()
        if isinstance(self.step, Tensor):
            self.step.add_(1)
        else:
            self.step += 1
        self._reset()

    def go_to(self, step: Integers, sequences: int = 0) -> None:
        DrawKey(self.seed, step)  # checks the range
        self.step = step
        self._reset()
        self.sequences = sequences

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimiser has stepped: the next pass sees new draws if it trains the model and something was drawn since."""
        if self.by_hand or isinstance(self.step, Tensor) or not self._moved:
            return
        # Asked for at each step, as loading a state dict may put other tensors in their places.
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if id(self.embedding.weight) in held:
            self._noticed = True
            self.advance()
        elif self.model is not None and any(id(parameter) in held for parameter in self.model.parameters()):
            # Not at once: another loss of the same pass may have its backward, and its recomputation, still before it.
            self._noticed = self.pending = True
        elif self._drawn_since and not self._noticed:
            self._drawn_since, self._unnoticed = False, self._unnoticed + 1
            self._tell_of_strange_optimisers()

    def __deepcopy__(self, memo: dict[int, Any]) -> Clock:
        """A copy of the whole model has a clock of that copy; one of a part of it is still of this model."""
        copied = copy.copy(self)
        memo[id(self)] = copied
        for name, value in vars(self).items():
            setattr(copied, name, memo.get(id(value), value) if name == "model" else copy.deepcopy(value, memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "model"}

    def _tell_of_idle_tables(self) -> None:
        """Warn, once, of tables that no pass of the first step has drawn."""
        if self._moved and self.never_drawn:
            names, self.never_drawn = ", ".join(sorted(self.never_drawn)), set()
            warnings.warn(
                f"smoothing had no effect on {names}: the model trained a step without calling it, perhaps reading its weight "
                "in another way (F.embedding, F.linear, a fused loss); call the module, or for a head use output='none'",
                stacklevel=2,
            )

    def _tell_of_strange_optimisers(self) -> None:
        if self._unnoticed == UNNOTICED:
            warnings.warn(
                f"the draws have not advanced in {UNNOTICED} steps of optimisers that hold no parameter of the smoothed model; "
                "if one of them trains it (copies of its weights?), use advance='manual' and call handle.step() after it",
                stacklevel=2,
            )

    def _reset(self) -> None:
        self.sequences, self._moved, self._passes, self._recomputed, self.pending = 0, False, 0, False, False
        self.window = None

    def _first_node(self) -> int:
        """Return a number that every node of the pass that begins will have or exceed."""
        before, made = self._nodes_before, _nodes_made()
        self._nodes_before = made
        if torch.is_grad_enabled():
            return made
        # A reentrant checkpoint makes its one node before it runs the pass; ``before`` may be of another thread.
        return min(before, made - 1)

    def _repeated(self, *, own: bool) -> Window:
        """Return the window of the pass that backward recomputes; unless its ``own`` is needed, any of its step will do."""
        window, self._recomputed = self.window, True
        # Numbers alone do not tell a reentrant checkpoint's pass from a later one without gradients.
        several = own and self._passes > 1
        if window is None or several or _backward_is_before(window.first_node if own else window.first_node_of_step):
            raise InputError(
                "a checkpointed embedding or head is recomputed after a later pass or step, and its own draws cannot be told; "
                "call backward for each loss of a pass before the next pass or step, leave the embedding and the head out of "
                "the checkpoint, or, for passes of one step, use scope='batch' and another output than 'target'"
            )
        return window


def outside_compile(function: Function) -> Function:
    """torch.compile leaves this out: draws are made in numpy on the CPU and by kernels of our own on a GPU."""
    disabled: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


def recomputing() -> bool:
    """Whether backward is running, so that a forward pass is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _nodes_made() -> int:
    """Return how many nodes autograd has made in this thread, which is the number of the next."""
    return torch._C._autograd._get_sequence_nr()


def _backward_is_before(number: int) -> bool:
    """Whether backward has come to a node that was made before the one of that number."""
    node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
    return node is not None and node._sequence_nr() < number


def _processes() -> tuple[int, int]:
    """Return this process's rank and how many there are; each holds its share of the columns."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


_CLOCKS: weakref.WeakSet[Clock] = weakref.WeakSet()
"""Weak, so that a forgotten handle does not keep its model alive."""


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for clock in list(_CLOCKS):
        clock.stepped(optimizer)


register_optimizer_step_post_hook(_after_step)
