"""``smooth``: variational smoothing for any model with an embedding, and the handle that takes it off again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self, SupportsIndex, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from varsmooth.draws import DrawKey
from varsmooth.dropin.checks import check_embedding, check_head, check_kinds
from varsmooth.dropin.clock import Clock, outside_compile, recomputing
from varsmooth.dropin.finding import find_embedding, find_head, name_of, same_table, shifts_labels, tied_beside, unwrapped
from varsmooth.dropin.tables import Settings, Smoothed, SmoothedEmbedding, SmoothedHead, Table
from varsmooth.dropin.vocabulary import fitted, special_rows, without
from varsmooth.errors import InputError, check_choice
from varsmooth.posterior import Granularity, KLForm, OutputRule, Predict, Scope
from varsmooth.proposal import Proposal

Advance = Literal["optimizer", "manual"]
IGNORED = -100
"""The label that losses leave out."""


def smooth(
    model: nn.Module,
    proposal: Proposal | None,
    granularity: Granularity = "element",
    output: OutputRule = "table",
    dropout: float = 0.0,
    predict: Predict = "mean",
    *,
    input: str | nn.Module | None = None,
    head: str | nn.Module | None = None,
    scope: Scope = "sequence",
    seed: int = 0,
    special_ids: Iterable[int] = (),
    batch_first: bool = True,
    dropout_granularity: Granularity = "element",
    variance: float = 0.0,
    padding: int | None = None,
    advance: Advance = "optimizer",
    data_parallel: tuple[int, int] | None = None,
    allow_frozen: bool = False,
) -> SmoothingHandle:
    """Draw the word tables of ``model`` from their posterior while it trains, and predict with their mean.

    ``input`` and ``head``: the embedding and the output layer, as modules or by name, where they are not found by themselves.
    ``output``: ``table`` draws the head's whole table, ``target`` follows the replaced inputs and needs labels, ``none`` leaves
    the head alone. ``special_ids``: never replaced and never proposed; an embedding's ``padding_idx`` is always one of them.
    ``batch_first``: ids are [batch, time], else [time, batch]. ``padding``: rows at the end of a table that stand for no word.
    ``advance``: the step of the draws follows the optimiser that trains the model, or only ``handle.step()``.
    ``data_parallel``: rank and number of processes that share a batch, if not those of torch.distributed.
    """
    check_kinds(model, proposal)
    check_choice("output", output, get_args(OutputRule))
    check_choice("predict", predict, get_args(Predict))
    check_choice("advance", advance, get_args(Advance))
    if output == "target" and granularity != "word":
        raise InputError("output='target' needs granularity='word': element-wise smoothing replaces no whole word")
    DrawKey(seed)  # refuses a bad one now
    if data_parallel is not None and not 0 <= data_parallel[0] < data_parallel[1]:
        raise InputError(f"data_parallel must be a rank and how many there are, with 0 <= rank < number; got {data_parallel}")
    model = unwrapped(model)
    embedding = find_embedding(model, input)
    for module in same_table(model, embedding, nn.Embedding):
        check_embedding(module, name_of(model, module), allow_frozen=allow_frozen)
    layer = None if output == "none" else find_head(model, embedding, head)
    for scorer in [] if layer is None else same_table(model, layer, nn.Linear):
        check_head(scorer, name_of(model, scorer), allow_frozen=allow_frozen)
    special = special_rows(special_ids, embedding)
    proposal = None if proposal is None else without(proposal, special)
    settings = Settings(granularity, output, scope, dropout, dropout_granularity, variance, batch_first)
    clock = Clock(seed, embedding, model, by_hand=advance == "manual", processes=data_parallel)
    parts, rows_of_padding = _parts(model, embedding, layer, proposal, settings, clock, predict, padding, special)
    return SmoothingHandle(model, parts, clock, settings, rows_of_padding)


def _parts(
    model: nn.Module,
    embedding: nn.Embedding,
    head: nn.Linear | None,
    proposal: Proposal | None,
    settings: Settings,
    clock: Clock,
    predict: Predict,
    padding: int | None,
    special: list[int],
) -> tuple[list[Smoothed], dict[str, int]]:
    """Return what replaces each module's forward, and how many rows of each table are padding."""
    found: dict[str, int] = {}

    def table(module: nn.Embedding | nn.Linear, scope: Scope) -> Table:
        name = name_of(model, module)
        fitting, found[name] = fitted(proposal, len(module.weight), f"the table of {name!r}", padding)
        made = Table(module, name, fitting, scope, settings)
        _ = made.posterior  # refuses bad settings now
        clock.never_drawn.add(name)
        return made

    inputs = table(embedding, settings.scope)
    parts: list[Smoothed] = [
        SmoothedEmbedding(module, inputs, clock, predict != "mode") for module in same_table(model, embedding, nn.Embedding)
    ]
    if head is not None:
        outputs = table(head, "batch")
        if special and settings.output == "target":
            outputs.special = torch.isin(torch.arange(len(head.weight)), torch.tensor(special)).to(head.weight.device)
        parts += [SmoothedHead(module, outputs, clock, predict == "mean") for module in same_table(model, head, nn.Linear)]
    return parts, found


@dataclass(eq=False)
class SmoothingHandle:
    """Smoothing of one model. ``remove`` (or the end of a ``with`` block) gives the model back as it was."""

    model: nn.Module
    parts: list[Smoothed]
    clock: Clock
    settings: Settings
    padding: dict[str, int]
    """how many rows at the end of each table stand for no word"""
    removed: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            part.install()
        self._hooks: list[RemovableHandle] = [
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after, always_call=True),
        ]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.clock.model = self.model

    def kl(self, form: KLForm = "exact") -> Tensor:
        """Return ``0.5 * sum_v c_v |e_v|^2`` of every drawn table, before lambda; a tied table counts once.

        Add it to the loss in place of weight decay on these tables: ``lambda / T`` times it to a mean over tokens of windows of
        T words.
        """
        for part in self.parts:
            part.check_tie()
        weights = [part.module.weight for part in self.parts]  # kept, or the next one that is computed might get the same id
        tables = {id(weight): part.table for weight, part in zip(weights, self.parts, strict=True)}
        return torch.stack([table.posterior.kl(form) for table in tables.values()]).sum()

    @property
    def current_step(self) -> int:
        """The step of the next forward pass."""
        return int(self.clock.step) + self.clock.pending

    def step(self, to: int | Tensor | None = None) -> int:
        """Advance to the next step's draws, or go to step ``to``; return the step.

        Only needed with ``advance='manual'`` or to resume. A 0-d integer tensor is kept, not copied: whoever replays a CUDA
        graph advances it there, and every forward pass then starts at the first sequence of the batch.
        """
        is_integer = not (to.dim() or to.is_floating_point()) if isinstance(to, Tensor) else isinstance(to, SupportsIndex)
        if to is not None and not is_integer:
            raise InputError(f"a step is one integer, got {to!r}")
        if to is None:
            self.clock.settle()
            self.clock.advance()
        else:
            self.clock.go_to(to)
        return self.current_step

    def labels(self, labels: Tensor, *, shift: bool = False) -> None:
        """Give the next forward pass its labels, in the shape of the ids: at each place, what the logits there should predict.

        ``shift``: they are the ids themselves, to be shifted by one; so are those that a causal model of transformers is called
        with as ``labels=``. Of any other model it is not known whether it shifts them, so they must be given here.
        """
        if not isinstance(labels, Tensor):
            raise InputError(f"labels must be a tensor, got {type(labels).__name__}")
        self.clock.given_labels = self._shifted(labels) if shift else labels

    def state_dict(self) -> dict[str, int]:
        """Return what a resumed run needs to go on with the same draws."""
        sequences = 0 if self.clock.pending else self.clock.sequences
        return {"step": self.current_step, "sequences": sequences, "seed": self.clock.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the draws of ``state_dict``."""
        if missing := [name for name in self.state_dict() if name not in state]:
            raise InputError(f"the handle's state lacks {', '.join(missing)}; give it what handle.state_dict() returned")
        self.clock.seed = int(state["seed"])
        self.clock.go_to(int(state["step"]), int(state["sequences"]))

    @torch.no_grad()
    def fold(self) -> None:
        """Write the mean into the tables and remove the handle: a plain model that predicts as this one did."""
        if self.removed:
            raise InputError("this handle was removed or folded already; fold() would change the tables once more")
        for part in self.parts:
            part.check_tie()
            if "weight" not in part.module._parameters:
                raise InputError(f"{part.table.name!r} has a weight that is computed by now, which fold() cannot set")
        means = {id(part.module.weight): part for part in self.parts if part.mean}
        for part in self.parts:
            if not part.mean and id(part.module.weight) in means:
                raise InputError(
                    "fold() cannot give one tied table two values: the input's mean and the head's mode; use predict='mean'"
                )
        if tied := tied_beside(self.model, means, [part.module for part in self.parts]):
            raise InputError(
                f"fold() would change {tied!r} too, which is tied to a smoothed table and was not smoothed itself; keep the "
                "handle to predict with the mean, or remove() it to predict with the table as it is"
            )
        for part in means.values():
            weight = part.module.weight
            with torch.autocast(weight.device.type, enabled=False):  # the mean is a product, which autocast would round
                weight.copy_(part.table.posterior.mean())
        self.remove()

    def remove(self) -> None:
        """Give the model back as it was; more than once does no harm."""
        for part in self.parts if not self.removed else []:
            part.restore()
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.removed = [], True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        tables = [f"{name_of(self.model, part.module)} {tuple(part.module.weight.shape)}" for part in self.parts]
        padded = [f"{rows} rows of {name} are padding" for name, rows in self.padding.items() if rows]
        proposals = [part.table.proposal for part in self.parts]
        silent = ["no word is ever replaced"] if all(each is None or each.silent for each in proposals) else []
        state = "removed" if self.removed else f"step {self.current_step}"
        return f"SmoothingHandle({'; '.join([', '.join(tables), *padded, *silent, state])})"

    @outside_compile
    def _before(self, model: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if getattr(model, "_is_replica", False):
            raise InputError("nn.DataParallel is not supported, its replicas would share one draw; use DistributedDataParallel")
        if recomputing():
            return
        if not model.training:
            self.clock.given_labels = None
            return
        if self.clock.given_labels is None and self.settings.output == "target" and isinstance(kwargs.get("labels"), Tensor):
            self.clock.given_labels = self._shifted(kwargs["labels"]) if shifts_labels(model) else None
        self.clock.begin()
        self.clock.inside = True

    @outside_compile
    def _after(self, *_: object) -> None:
        if not recomputing():
            self.clock.end()

    def _shifted(self, labels: Tensor) -> Tensor:
        time = 1 if self.settings.batch_first else 0
        nothing = torch.full_like(labels.narrow(time, 0, 1), IGNORED)
        return torch.cat([labels.narrow(time, 1, labels.shape[time] - 1), nothing], time)
