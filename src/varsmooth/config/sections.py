"""Everything a run can be told, as frozen dataclasses whose values are checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from varsmooth.config.checks import Interval, checked
from varsmooth.errors import InputError
from varsmooth.posterior import Granularity, KLForm, OutputRule, Predict, Scope

Value = TypeVar("Value")


def option(default: Value, explanation: str) -> Value:
    """A field of a section; ``varsmooth recipes`` and docs/configuration.md show its explanation (``varsmooth.keys``)."""
    return field(default=default, metadata={"explanation": explanation})


Size = Annotated[int, Interval(1, 10**9)]
SizeOrNone = Annotated[int, Interval(0, 10**9)]
Seed = Annotated[int, Interval(0, 2**32, "high")]
Probability = Annotated[float, Interval(0, 1)]
Rate = Annotated[float, Interval(0, 1, "high")]
Positive = Annotated[float, Interval(0, math.inf, "both")]
NotNegative = Annotated[float, Interval(0, math.inf, "high")]

MOST_SAMPLES = 10_000
"""Draws to predict with, at most: each has a state of its own, and reads the whole text."""
Method = Literal["none", "noising", "variational"]
Scheme = Literal["kneser-ney", "linear-interpolation", "absolute-discounting", "blank"]
Tie = Literal["independent", "shared-draw"]
Cell = Literal["lstm", "gru"]
Bias = Literal["zero", "unigram"]
DropoutKind = Literal["table", "activation"]
RecurrentKind = Literal["rows", "dropconnect", "update"]
RecurrentScope = Literal["batch", "sequence"]
Schedule = Literal["cosine", "plateau", "constant"]
Precision = Literal["fp32", "bf16"]
Device = Literal["auto", "cpu", "cuda"]
Engine = Literal["auto", "graph", "eager"]


@dataclass(frozen=True)
class DataConfig:
    name: str = option("python", "a named data set, or a folder with train.txt, valid.txt and test.txt")
    data_dir: str = option("", "where ptb/ and wikitext-2/ lie; empty: $VARSMOOTH_DATA, else the cache")
    min_count: SizeOrNone = option(
        0,
        "words rarer than this become <unk>; 0: 3 for python, 2 where valid or test have other words, else 1",
    )
    max_words: SizeOrNone = option(0, "keep only the most frequent words, <eos> and <unk> among them; 0: no limit")
    max_tokens: SizeOrNone = option(
        0, "keep the first whole lines of train, up to this many tokens, and the same share of valid and test; 0: all"
    )


@dataclass(frozen=True)
class ModelConfig:
    cell: Cell = option("lstm", "the recurrent cell")
    hidden: Size = option(512, "units per layer, and the size of the word vectors")
    layers: Annotated[int, Interval(1, 1000)] = option(2, "recurrent layers")
    tied: bool = option(True, "one table serves as input and output table")
    bias: Bias = option("zero", "where the softmax bias starts: at 0, or at the logarithms of the words' shares of the text")


@dataclass(frozen=True)
class SmoothingConfig:
    method: Method = option("none", "no smoothing, data noising (the predecessor), or variational smoothing")
    scheme: Scheme = option("kneser-ney", "what may replace a word, and how often")
    gamma: Probability = option(0.2, "strength: the rate, or its factor where the rate depends on counts")
    spare_below: SizeOrNone = option(0, "words that occur less often in train are never replaced; 0: all may be")
    granularity: Granularity = option("word", "choose a replacement per word, or per word and dimension")
    scope: Scope = option("sequence", "how long an input draw lasts: over the sequence, over the batch, or for one position")
    output: OutputRule = option("none", "replaced on the output side: nothing, the target where the input was, or the table")
    tie: Tie = option("independent", "whether tied tables share one draw; shared-draw needs output table and scope batch")
    variance: NotNegative = option(0.0, "Gaussian variance around every mixture component")
    kl: KLForm = option(
        "exact", "weights of the penalty on the tables: exact, as printed in the paper, or 1 (so without smoothing)"
    )
    predict: Predict = option(
        "mode", "predict with the tables as trained, with their means, or with the mean of the input table alone"
    )


@dataclass(frozen=True)
class DropoutConfig:
    tables: Rate = option(0.5, "dropout of the input and output tables")
    kind: DropoutKind = option("table", "drop elements of the tables, or of what is looked up and of the last hidden states")
    tables_granularity: Granularity = option("element", "drop whole words, or single elements")
    recurrent: Rate = option(0.2, "dropout of the recurrent matrices")
    recurrent_kind: RecurrentKind = option("rows", "hidden units' outgoing weights, single weights, or the cell's update")
    recurrent_scope: RecurrentScope = option("batch", "one mask per batch, or one per sequence")
    recurrent_variance: NotNegative = option(0.0, "Gaussian variance on the recurrent matrices")


@dataclass(frozen=True)
class TrainConfig:
    steps: Size = option(20_000, "training steps")
    batch: Size = option(64, "sequences side by side")
    window: Size = option(35, "tokens per step and sequence")
    lr: Positive = option(0.003, "learning rate at its height")
    warm_up: SizeOrNone = option(0, "steps in which the learning rate rises to its height; 0: it starts there")
    l2: Annotated[float, Interval(0, 1e30)] = option(1e-4, "lambda: weight of the penalty on tables and other parameters")
    clip: Positive = option(10.0, "largest norm of the gradient, for a loss summed over the window")
    schedule: Schedule = option("cosine", "how the learning rate falls")
    final_lr_fraction: Probability = option(0.0, "cosine: where it ends, as a fraction of lr")
    plateau_factor: Annotated[float, Interval(0, 1, "both")] = option(0.5, "plateau: multiply the rate by this when it falls")
    plateau_patience: Size = option(3, "plateau: the rate falls after this many evaluations without gain")
    average: Rate = option(0.0, "decay of the moving average of the weights; 0: no averaging")
    eval_every: SizeOrNone = option(0, "steps between evaluations; 0: once per epoch")
    save_every: Size = option(500, "steps between saved states")
    patience: SizeOrNone = option(0, "stop after this many evaluations without gain; 0: never")
    precision: Precision = option("fp32", "arithmetic of the forward and backward pass")
    device: Device = option("auto", "where to train; auto: a GPU where there is one")
    engine: Engine = option("auto", "how steps run: kernels in one CUDA graph, or plain torch; auto: a graph on one GPU")
    threads: Annotated[int, Interval(0, 1024)] = option(
        0, "CPU threads; 0: one for small models, which gain nothing by more, else torch's choice"
    )
    seed: Seed = option(1, "of every random choice")


@dataclass(frozen=True)
class EvaluateConfig:
    batch: Size = option(16, "columns the development set is cut into")
    window: Size = option(128, "tokens per step")
    burn_in: SizeOrNone = option(64, "tokens read before each column, for context")
    final: bool = option(True, "evaluate valid and test in full as a run ends; a trial of a sweep is judged without that")
    samples: Annotated[int, Interval(0, MOST_SAMPLES)] = option(
        0, "draws to predict with when a smoothed run ends, beside its mode and mean; 0: none"
    )


SECTIONS: dict[str, Callable[..., Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "smoothing": SmoothingConfig,
    "dropout": DropoutConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
}
HINTS = {section: get_type_hints(kind, include_extras=True) for section, kind in SECTIONS.items()}


@dataclass(frozen=True)
class Config:
    """The whole configuration; making one checks every value, so a Config that exists is a sound one."""

    name: str = option("", "what the run is called in tables; the recipe's own name unless given")
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    smoothing: SmoothingConfig = field(default_factory=SmoothingConfig)
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def __post_init__(self) -> None:
        checked("name", self.name, str)
        for section, hints in HINTS.items():
            values = getattr(self, section)
            sound = {key: checked(f"{section}.{key}", getattr(values, key), hint) for key, hint in hints.items()}
            object.__setattr__(self, section, replace(values, **sound))
        _check_together(self)


def _check_together(config: Config) -> None:
    """Refuse values that are fine alone and make no sense together."""
    smoothing, dropout = config.smoothing, config.dropout
    if smoothing.output == "target" and smoothing.granularity != "word":
        raise InputError("smoothing.output=target needs smoothing.granularity=word, got element; or use smoothing.output=table")
    if smoothing.tie == "shared-draw":
        if not config.model.tied:
            raise InputError("smoothing.tie=shared-draw needs model.tied=true, got false")
        if smoothing.output != "table":
            raise InputError(f"smoothing.tie=shared-draw needs smoothing.output=table, got {smoothing.output}")
        if smoothing.scope != "batch":
            raise InputError(f"smoothing.tie=shared-draw needs smoothing.scope=batch, got {smoothing.scope}")
    if smoothing.method == "noising":
        for key, needed in {"granularity": "word", "output": "none", "kl": "plain"}.items():
            if (value := getattr(smoothing, key)) != needed:
                raise InputError(f"smoothing.method=noising needs smoothing.{key}={needed}, got {value}")
    if dropout.kind == "activation" and dropout.tables_granularity != "element":
        raise InputError(f"dropout.kind=activation needs dropout.tables_granularity=element, got {dropout.tables_granularity}")
    if dropout.recurrent_kind == "dropconnect" and dropout.recurrent_scope == "sequence":
        raise InputError("dropout.recurrent_kind=dropconnect needs dropout.recurrent_scope=batch, got sequence")
