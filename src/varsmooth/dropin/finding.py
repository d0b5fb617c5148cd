"""Finds the tables of a model: the embedding that reads words and the layer that scores them."""

from __future__ import annotations

import inspect
from collections.abc import Container, Sequence
from typing import TypeVar

from torch import nn

from varsmooth.errors import InputError, nearest

Layer = TypeVar("Layer", nn.Embedding, nn.Linear)
CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How transformers names the classes that predict the next word."""
SHIFTING_LOSS = "loss_function"
"""What causal models of transformers call that shift their labels; some, such as Bart's, compute a loss of their own."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of torch: DistributedDataParallel, DataParallel and compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def name_of(model: nn.Module, wanted: nn.Module) -> str:
    return next((name for name, module in model.named_modules() if module is wanted), type(wanted).__name__)


def find_embedding(model: nn.Module, given: str | nn.Module | None) -> nn.Embedding:
    """Return the embedding that was ``given`` by name or as a module, or the model's only candidate."""
    if given is not None:
        return _given(model, given, nn.Embedding, "input")
    asked = _ask(model, "get_input_embeddings")
    if isinstance(asked, nn.Embedding):
        return asked
    found = _by_table(model, nn.Embedding) if asked is None else {}
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        what = "it has no nn.Embedding" if asked is None else f"its input layer is a {type(asked).__name__}"
        raise InputError(
            f"no embedding found in {type(model).__name__}: {what}; smooth() needs an nn.Embedding that reads word ids, "
            "and a quantised one cannot be drawn: smooth first, quantise afterwards"
        )
    raise InputError(
        f"{type(model).__name__} has several embeddings ({_listed(found)}); name the one of the words: input='NAME'"
    )


def same_table(model: nn.Module, layer: Layer, kind: type[Layer]) -> list[Layer]:
    """Return every layer of this kind that uses the table: encoder and decoder often have one each, tied by the weight."""
    found = [layer]
    found.extend(
        each for each in model.modules() if isinstance(each, kind) and each.weight is layer.weight and each is not layer
    )
    return found


def tied_beside(model: nn.Module, weights: Container[int], smoothed: Sequence[nn.Module]) -> str | None:
    """Return the name of a layer that uses one of these weights, given by their ids, and is none of the smoothed."""
    layers = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding | nn.Linear))
    return next((name for name, layer in layers if id(layer.weight) in weights and layer not in smoothed), None)


def find_head(model: nn.Module, embedding: nn.Embedding, given: str | nn.Module | None) -> nn.Linear:
    """Return the layer that was ``given``, the one the model names, the one tied to the embedding, or the one that fits."""
    if given is not None:
        return _given(model, given, nn.Linear, "head")
    asked, words = _ask(model, "get_output_embeddings"), embedding.num_embeddings
    # Some models answer with the layer before the one that scores words.
    if isinstance(asked, nn.Linear) and (asked.out_features == words or asked.out_features != asked.in_features):
        return asked
    layers = _by_table(model, nn.Linear)
    tied = {name: layer for name, layer in layers.items() if layer.weight is embedding.weight}
    found = tied or {name: layer for name, layer in layers.items() if layer.out_features == words}
    if not found:
        raise InputError(
            f"no output head found in {type(model).__name__}: no nn.Linear is tied to the embedding or has its "
            f"{words} rows; smooth the input alone with output='none', or name the layer with head='NAME'; "
            "a quantised one cannot be drawn: smooth first"
        )
    instead = "smooth(..., head='NAME'), or smooth the input alone with output='none'"
    if len(found) > 1:
        raise InputError(f"several layers of {type(model).__name__} could score words ({_listed(found)}); name one, {instead}")
    (head,) = found.values()
    # The other half of a feed-forward layer reads what this one writes, and writes what this one reads.
    half = (words, head.in_features)
    halves = (name for name, layer in layers.items() if layer is not head and (layer.in_features, layer.out_features) == half)
    if not tied and (other := next(halves, None)):
        raise InputError(
            f"{_listed(found)} has a row for each word, but may be one half of a feed-forward layer, whose other is {other!r}; "
            f"name the layer that scores words, {instead}"
        )
    return head


def shifts_labels(model: nn.Module) -> bool:
    """Whether it is a causal model of transformers, or made from one, that shifts its ``labels``: masked models do not."""
    if not hasattr(model, "loss_type") or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    if not any(kind.__name__.endswith(CAUSAL) for kind in type(model).__mro__):
        return False
    for kind in type(model).__mro__:
        forward = vars(kind).get("forward")
        code = getattr(forward and inspect.unwrap(forward), "__code__", None)
        names = () if code is None else code.co_names
        # One that calls another's is asked for that one's.
        if SHIFTING_LOSS in names or (code is not None and not {"super", "forward"} & {*names}):
            return SHIFTING_LOSS in names
    return False


def _given(model: nn.Module, given: str | nn.Module, kind: type[Layer], argument: str) -> Layer:
    module: nn.Module | None = given if isinstance(given, nn.Module) else None
    if module is not None and not any(each is module for each in model.modules()):
        raise InputError(
            f"{argument}= is a {type(module).__name__} that is no part of the {type(model).__name__} to be smoothed"
        )
    if isinstance(given, str):
        names = dict(model.named_modules())
        if given not in names:
            raise InputError(f"{argument}={given!r}: {type(model).__name__} has no module of this name{nearest(given, names)}")
        module = names[given]
    if not isinstance(module, kind):
        found = type(module)
        if found.__name__ == kind.__name__:  # as torch's own quantised layers are called
            raise InputError(
                f"{argument}={given!r} is a {found.__name__} of {found.__module__}, not of torch.nn; a quantised layer cannot "
                "be drawn: smooth first, quantise afterwards"
            )
        raise InputError(f"{argument}={given!r} is a {found.__name__}; it must be an nn.{kind.__name__}")
    return module


def _ask(model: nn.Module, method: str) -> object:
    """Return what a transformers model answers; some raise for want of such a layer."""
    try:
        return getattr(model, method)()
    except (AttributeError, NotImplementedError):
        return None


def _by_table(model: nn.Module, kind: type[Layer]) -> dict[str, Layer]:
    """Return the layers of one kind by name, one for each weight."""
    found: dict[int, tuple[str, Layer]] = {}
    for name, module in model.named_modules():
        if isinstance(module, kind):
            found.setdefault(id(module.weight), (name, module))
    return dict(found.values())


def _listed(found: dict[str, Layer]) -> str:
    return ", ".join(f"{name} {tuple(layer.weight.shape)}" for name, layer in list(found.items())[:8])
