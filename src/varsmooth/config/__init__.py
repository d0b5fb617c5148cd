"""Everything a run can be told, read from and written to TOML."""

from varsmooth.config.checks import Interval, checked
from varsmooth.config.reading import config_from_mapping, load_config, override, parse_toml, read_toml, unknown_key, with_values
from varsmooth.config.sections import (
    HINTS,
    SECTIONS,
    Config,
    DataConfig,
    DropoutConfig,
    Engine,
    EvaluateConfig,
    ModelConfig,
    Precision,
    SmoothingConfig,
    TrainConfig,
)
from varsmooth.config.writing import WHERE_AND_HOW, config_checksum, flat_config, literal, to_mapping, to_toml

__all__ = [
    "HINTS",
    "SECTIONS",
    "WHERE_AND_HOW",
    "Config",
    "DataConfig",
    "DropoutConfig",
    "Engine",
    "EvaluateConfig",
    "Interval",
    "ModelConfig",
    "Precision",
    "SmoothingConfig",
    "TrainConfig",
    "checked",
    "config_checksum",
    "config_from_mapping",
    "flat_config",
    "literal",
    "load_config",
    "override",
    "parse_toml",
    "read_toml",
    "to_mapping",
    "to_toml",
    "unknown_key",
    "with_values",
]
