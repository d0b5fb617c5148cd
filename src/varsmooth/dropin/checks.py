"""What a table must be to be drawn; each refusal says the way out."""

from __future__ import annotations

import torch
from torch import nn

from varsmooth.dropin.tables import Smoothed, forward_on_rows, is_plain
from varsmooth.errors import InputError
from varsmooth.proposal import Proposal

TRIED_AT_ONCE = 64
"""Words in a line, to look whether a subclass of nn.Embedding minds which they are: no longer than any takes."""


def check_kinds(model: object, proposal: object) -> None:
    """Refuse arguments of ``smooth`` that are not what they should be, which are easily exchanged."""
    if not isinstance(model, nn.Module):
        raise InputError(f"smooth(model, proposal): the model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(proposal, Proposal | None):
        kind = type(proposal).__name__
        raise InputError(f"smooth(model, proposal): needs a proposal such as Proposal.kneser_ney(counts, 0.2), got {kind}")


def check_embedding(module: nn.Embedding, name: str, *, allow_frozen: bool) -> None:
    _check_table(module, name, "embedding", allow_frozen=allow_frozen)
    if module.sparse:
        raise InputError(f"embedding {name!r} has sparse gradients, a drawn table has dense ones; build it with sparse=False")
    if module.max_norm is not None:
        raise InputError(f"embedding {name!r} has max_norm, which rewrites the table at each look-up; set max_norm to None")
    if module.scale_grad_by_freq:
        raise InputError(
            f"embedding {name!r} has scale_grad_by_freq, which draws do not follow; set scale_grad_by_freq to False"
        )
    if not is_plain(module) and not _reads_rows(module):
        raise InputError(
            f"embedding {name!r} is a {type(module).__name__} that does more than look rows up; "
            "smooth a plain nn.Embedding: name it with input='NAME'"
        )


def check_head(module: nn.Linear, name: str, *, allow_frozen: bool) -> None:
    _check_table(module, name, "head", allow_frozen=allow_frozen)
    if type(module).forward is not nn.Linear.forward:
        raise InputError(
            f"head {name!r} is a {type(module).__name__} with a forward of its own; smooth the input alone with output='none'"
        )


def _check_table(module: nn.Embedding | nn.Linear, name: str, what: str, *, allow_frozen: bool) -> None:
    forward = vars(module).get("forward")
    if isinstance(getattr(forward, "__self__", None), Smoothed):
        raise InputError(f"{what} {name!r} is smoothed already; call remove() on that handle first, or copy models before that")
    if forward is not None:
        raise InputError(f"{what} {name!r} has a forward set on the module itself (device hooks?); call smooth() before that")
    weight = module.weight
    if isinstance(weight, torch.Tensor) and "weight" not in module._parameters:
        raise InputError(
            f"{what} {name!r} has a weight that is computed from other parameters (weight_norm, pruning, another "
            "parametrisation), so it cannot be drawn; take that off first"
        )
    if isinstance(weight, torch.Tensor) and weight.is_meta:
        raise InputError(f"{what} {name!r} has no values yet (device 'meta'); give the model its weights first")
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.element_size() < 2:
        kind = str(getattr(weight, "dtype", type(weight).__name__)).removeprefix("torch.")
        raise InputError(
            f"{what} {name!r} is quantised ({kind}): draws need a table in floating point; smooth first, quantise "
            "afterwards, or leave this layer out of the quantisation"
        )
    if weight.dim() != 2:
        raise InputError(f"{what} {name!r} has a weight of shape {tuple(weight.shape)}, not [words, width]; is it sharded?")
    if not weight.requires_grad and not allow_frozen:
        raise InputError(
            f"{what} {name!r} is frozen, so drawing its table trains nothing in it; unfreeze it with "
            "weight.requires_grad_(True), or pass allow_frozen=True to use the draws as noise only"
        )


@torch.no_grad()
def _reads_rows(module: nn.Embedding) -> bool:
    """Whether the subclass's forward on rows looked up before is what it is on ids, of whatever word and at whatever place."""
    words = torch.arange(module.num_embeddings, device=module.weight.device)
    try:
        return all(
            torch.equal(type(module).forward(module, ids), forward_on_rows(module, module.weight[ids]))
            for some in torch.split(words, TRIED_AT_ONCE)
            for ids in (some[None], some.flip(0)[None])
        )
    except Exception:  # whatever a class of somebody's says to ids that it does not expect
        return False
