"""Everything a run can be told, as frozen dataclasses that are read from and written to TOML."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from varsmooth.errors import InputError, nearest
from varsmooth.posterior import Granularity, KLForm, OutputRule, Scope


@dataclass(frozen=True)
class Interval:
    """The values a number may take; ``open`` names the ends that do not belong to it."""

    low: float
    high: float
    open: Literal["", "low", "high", "both"] = ""

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open in ("low", "both") else value >= self.low
        below = value < self.high if self.open in ("high", "both") else value <= self.high
        return above and below

    def __str__(self) -> str:
        left = "(" if self.open in ("low", "both") else "["
        right = ")" if self.open in ("high", "both") else "]"
        return f"{left}{self.low}, {self.high}{right}"


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

Method = Literal["none", "noising", "variational"]
Scheme = Literal["kneser-ney", "linear-interpolation", "absolute-discounting", "blank"]
Tie = Literal["independent", "shared-draw"]
Prediction = Literal["mode", "mean", "mean-input"]
Cell = Literal["lstm", "gru"]
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
        0, "keep the first whole lines of train with so many tokens, and the same share of valid and test; 0: all"
    )


@dataclass(frozen=True)
class ModelConfig:
    cell: Cell = option("lstm", "the recurrent cell")
    hidden: Size = option(512, "units per layer, and the size of the word vectors")
    layers: Size = option(2, "recurrent layers")
    tied: bool = option(True, "one table serves as input and output table")


@dataclass(frozen=True)
class SmoothingConfig:
    method: Method = option("none", "no smoothing, data noising (the predecessor), or variational smoothing")
    scheme: Scheme = option("kneser-ney", "what may replace a word, and how often")
    gamma: Probability = option(0.2, "strength: the rate, or its factor where the rate depends on counts")
    granularity: Granularity = option("word", "choose a replacement per word, or per word and dimension")
    scope: Scope = option("sequence", "how long an input draw lasts: over the sequence, over the batch, or for one position")
    output: OutputRule = option("none", "replaced on the output side: nothing, the target where the input was, or the table")
    tie: Tie = option("independent", "whether tied tables share one draw; shared-draw needs output table and scope batch")
    variance: NotNegative = option(0.0, "Gaussian variance around every mixture component")
    kl: KLForm = option(
        "exact", "weights of the penalty on the tables: exact, as printed in the paper, or 1 (so without smoothing)"
    )
    predict: Prediction = option(
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
    l2: NotNegative = option(1e-4, "lambda: weight of the penalty on tables and other parameters")
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
    threads: SizeOrNone = option(0, "CPU threads; 0: one for small models, which gain nothing by more, else torch's choice")
    seed: Seed = option(1, "of every random choice")


@dataclass(frozen=True)
class EvaluateConfig:
    batch: Size = option(16, "columns the development set is cut into")
    window: Size = option(128, "tokens per step")
    burn_in: SizeOrNone = option(64, "tokens read before each column, for context")
    final: bool = option(True, "evaluate valid and test in full as a run ends; a trial of a sweep is judged without that")
    samples: SizeOrNone = option(0, "draws to predict with when a smoothed run ends, beside its mode and mean; 0: none")


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
        _checked("name", self.name, str)
        for section, hints in HINTS.items():
            values = getattr(self, section)
            checked = {key: _checked(f"{section}.{key}", getattr(values, key), hint) for key, hint in hints.items()}
            object.__setattr__(self, section, replace(values, **checked))
        _check_together(self)


def load_config(path: Path | str) -> Config:
    """Read a configuration file, such as a run's ``config.toml``."""
    return config_from_mapping(read_toml(Path(path)), str(path))


def config_from_mapping(mapping: Mapping[str, Any], source: str) -> Config:
    """Build a configuration from nested mappings; what they leave out keeps its default. ``source`` opens every message."""
    try:
        sections = {key: _section(key, value) for key, value in mapping.items()}
        return Config(**sections)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def override(config: Config, settings: Iterable[str]) -> Config:
    """Apply ``section.key=value`` settings in turn, each checked on its own, and check the result as a whole."""
    mapping = to_mapping(config)
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not name:
            raise InputError(f"--set takes section.key=value, such as train.lr=0.004; got {_shown(setting)}")
        try:
            hint = _hint(name, text)
            value = _checked(name, _scalar(text, is_text=hint is str or get_origin(hint) is Literal), hint)
        except InputError as error:
            raise InputError(f"--set: {error}") from None
        section, _, key = name.rpartition(".")
        (mapping[section] if section else mapping)[key] = value
    return config_from_mapping(mapping, "--set")


def to_mapping(config: Config) -> dict[str, Any]:
    """Return the configuration as nested dictionaries, in the order of the file."""
    return asdict(config)


def to_toml(config: Config, comments: Mapping[str, str] | None = None) -> str:
    """Return the configuration as TOML text that ``load_config`` reads back as an equal one.

    ``comments`` has what to say behind each ``section.key``, in one line.
    """
    comments = comments or {}
    mapping = to_mapping(config)
    lines = [_line("name", mapping.pop("name"), comments.get("name"))]
    for section, values in mapping.items():
        lines += ["", f"[{section}]"]
        lines += [_line(key, value, comments.get(f"{section}.{key}")) for key, value in values.items()]
    return "\n".join(lines) + "\n"


def config_checksum(config: Config) -> str:
    """Return the SHA-256 of every value in the configuration."""
    return hashlib.sha256(json.dumps(to_mapping(config), sort_keys=True).encode()).hexdigest()


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with a message that names the file where it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML text; ``source`` names it in messages."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid TOML: {error}") from None


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


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as the type that ``hint`` asks for, or refuse it by name."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            hinted = nearest(value, choices) if isinstance(value, str) else ""
            raise InputError(f"{name} must be one of {', '.join(choices)}, got {_shown(value)}{hinted}")
        return value
    if get_origin(hint) is Annotated:
        kind, interval = get_args(hint)
        return _checked_number(name, value, kind, interval)
    if type(value) is not hint:
        raise InputError(f"{name} must be {'true or false' if hint is bool else 'a string'}, got {_shown(value)}")
    if hint is str and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(f"{name} must be text without NUL or undecodable bytes, got {value!a}")
    return value


def _checked_number(name: str, value: Any, kind: type, interval: Interval) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise InputError(f"{name} must be {'a whole number' if kind is int else 'a number'}, got {_shown(value)}")
    if value not in interval:
        raise InputError(f"{name} must be in {interval}, got {_shown(value)}")
    try:
        return value if kind is int else float(value) + 0.0  # the sum turns -0.0 into 0.0: one value, one checksum
    except OverflowError:
        raise InputError(f"{name} must be in {interval}, got {_shown(value)}") from None


def _hint(name: str, text: str) -> Any:
    """Return the type of the key ``name`` that is to be set to ``text``, or refuse what is no key."""
    if name == "name":
        return str
    if name in SECTIONS:
        raise InputError(_no_key(name, _scalar(text, is_text=False)))
    section, _, key = name.rpartition(".")
    if key not in HINTS.get(section, {}):
        raise InputError(_unknown(name))
    return HINTS[section][key]


def _no_key(section: str, value: Any) -> str:
    return f"{section} is a section with keys such as {section}.{next(iter(HINTS[section]))}, got {_shown(value)}"


def _section(key: str, value: Any) -> Any:
    """Return what ``Config`` takes for the top-level ``key`` of a file."""
    if key == "name":
        return value
    if key not in SECTIONS:
        raise InputError(_unknown(key))
    if not isinstance(value, Mapping):
        raise InputError(_no_key(key, value))
    for name in value:
        if name not in HINTS[key]:
            raise InputError(_unknown(f"{key}.{name}"))
    return SECTIONS[key](**value)


def _unknown(name: str) -> str:
    """Return a message on an unknown key: the same key in another section is the best hint, else the nearest name."""
    known = ["name", *SECTIONS, *(f"{section}.{key}" for section, keys in HINTS.items() for key in keys)]
    last = name.rpartition(".")[2]
    same = [candidate for candidate in known if candidate.rpartition(".")[2] == last and "." in candidate]
    hint = (nearest(name, same) or f"; did you mean {same[0]!r}?") if same else nearest(name, known)
    return f"unknown key {_shown(name)}{hint}"


def _scalar(text: str, *, is_text: bool) -> Any:
    """Parse the value of a setting as TOML; a bare word is a string, and so is anything where a string is wanted."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and (isinstance(value, str) or not is_text) else text


def _line(key: str, value: str | bool | int | float, comment: str | None) -> str:
    line = f"{key} = {literal(value)}"
    return f"{line:<32}  # {comment}" if comment else line


def literal(value: str | bool | int | float) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _shown(value: Any) -> str:
    """Return ``value`` for a one-line message, however large it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
