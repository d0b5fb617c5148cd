"""What a run is, as its record says from the beginning, and what a resumed one is held against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from varsmooth.config import Config, flat_config, to_mapping
from varsmooth.errors import InputError
from varsmooth.text import Corpus, Vocab
from varsmooth.text.streams import UnknownWordError
from varsmooth.train.environment import environment
from varsmooth.train.folder import RunFolder
from varsmooth.train.record import full_config, record_or_empty
from varsmooth.train.trainer import Trainer


def opening_record(config: Config, corpus: Corpus, trainer: Trainer) -> dict[str, Any]:
    made_with = environment(trainer.device)
    made_with["hardware"]["processes"] = trainer.ranks.size
    return {
        "recipe": config.name,
        "seed": config.train.seed,
        "parameters": sum(parameter.numel() for parameter in trainer.network.parameters()),
        "steps_per_epoch": trainer.steps_per_epoch,
        "data": {
            "name": corpus.name,
            "vocab_size": len(corpus.vocab),
            "vocab_checksum": corpus.vocab.checksum,
            "checksums": corpus.checksums,
            "tokens": {"train": corpus.train.numel(), "valid": corpus.valid.numel(), "test": corpus.test.numel()},
        },
        "config": to_mapping(config),
        **made_with,
        "results": [],
    }


def auto_config(config: Config, vocab: Vocab) -> dict[str, Any]:
    """What the Auto classes of transformers look for, so that they load a run's folder as it is (``varsmooth.hf``)."""
    return {
        "model_type": "varsmooth",
        "architectures": ["VarsmoothForCausalLM"],
        "vocab_size": len(vocab),
        "hidden_size": config.model.hidden,
        "num_hidden_layers": config.model.layers,
        "cell": config.model.cell,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), vocab.eos_id),
        "tie_word_embeddings": config.model.tied,
        "dtype": "float32",
    }


def finished_record(folder: RunFolder, config: Config) -> dict[str, Any] | None:
    """Return the record of a run that has finished with this configuration: there is nothing to go on with."""
    record = record_or_empty(folder)
    same = record.get("status") == "finished" and _settings(record) == flat_config(to_mapping(config))
    return record if same else None


def _settings(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a record's settings by their dotted names, None where it has none that can be read."""
    try:
        return full_config(record["config"])
    except (KeyError, TypeError, AttributeError, InputError):
        return None


def changed_texts(record: dict[str, Any], corpus: Corpus) -> list[str]:
    """Return the splits of which a record knows another text."""
    known = (record.get("data") or {}).get("checksums") or {}
    return [split for split, checksum in corpus.checksums.items() if known.get(split, checksum) != checksum]


def refuse_other_settings(folder: RunFolder, record: dict[str, Any], config: Config, vocab: Vocab | None) -> None:
    """Refuse to continue a run with another configuration or vocabulary than it was started with."""
    if "config" in record and _settings(record) != flat_config(to_mapping(config)):
        raise _changed(folder, folder.config_path.name)
    if vocab is not None and _knows_another(record, vocab):
        raise _changed(folder, folder.vocab_path.name)


def _knows_another(record: dict[str, Any], vocab: Vocab) -> bool:
    return (record.get("data") or {}).get("vocab_checksum") not in (None, vocab.checksum)


def refuse_other_text(folder: RunFolder, record: dict[str, Any], corpus: Corpus) -> None:
    """Refuse to continue a run on another text than it was started with."""
    if changed := changed_texts(record, corpus):
        raise _changed(folder, f"the {changed[0]} text")
    if _knows_another(record, corpus.vocab):  # where the file was gone, and the text gives another
        raise _changed(folder, folder.vocab_path.name)


@contextmanager
def unknown_words_explained(run: Path, what: Literal["started", "trained"], *, when: bool = True) -> Iterator[None]:
    """Where a run's own text holds a word that its vocabulary lacks, say that it has changed."""
    try:
        yield
    except UnknownWordError as error:
        if not when:
            raise
        raise InputError(
            f"{run}: the text has changed since this run was {what}: {error.where} has the word {error.word!r:.80}, which its "
            "vocabulary lacks; change it back or start a new run"
        ) from None


def _changed(folder: RunFolder, what: str) -> InputError:
    return InputError(f"{folder.path}: {what} has changed since this run was started; change it back or start a new run")
