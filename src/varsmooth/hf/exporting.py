"""A finished run as a folder that transformers loads: weights, configuration, tokenizer and model card."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers.utils import logging

from varsmooth.errors import InputError
from varsmooth.evaluate import LanguageModel
from varsmooth.evaluate.perplexity import check_temperature
from varsmooth.files import UMASK, check_place, sync_folder
from varsmooth.hf.card import card
from varsmooth.hf.modeling import VarsmoothForCausalLM
from varsmooth.hf.tokenizer import tokenizer_of
from varsmooth.posterior import Predict
from varsmooth.train.folder import RunFolder
from varsmooth.train.folder_lock import resume_command
from varsmooth.train.model_file import refuse_without_model
from varsmooth.train.record import result_of


def quiet() -> None:
    """Keep transformers from drawing progress bars for what takes a moment."""
    logging.disable_progress_bar()


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    files: tuple[str, ...]
    predict: Predict
    temperature: float
    tied: bool
    parameters: int
    """how many the folder holds"""
    trained_parameters: int | None
    """how many the run trained: without torch's second bias, with a blank row, one table where two are written"""


def export(
    run: Path | str,
    folder: Path | str,
    *,
    predict: Predict | None = None,
    temperature: float | Literal["auto"] = 1.0,
    force: bool = False,
) -> Exported:
    """Write the best model of a finished run to ``folder``, which must be new or empty; ``force`` replaces an earlier export.

    ``predict`` is the recipe's own unless given. ``temperature`` divides the logits: a number, or ``auto`` for the one that
    the run found best on the development set. If anything goes wrong, ``folder`` stays as it was.
    """
    source, target = RunFolder.open(run), Path(folder)
    refuse_without_model(source)
    record = source.read_record()
    _check_finished(source.path, record)
    _check_target(target, force)
    check_place(target, "folder")
    model = LanguageModel.load(run)
    chosen = predict or model.predict
    degree = _temperature(source.path, record, chosen, temperature)
    exported = VarsmoothForCausalLM.from_language_model(model, chosen, degree)
    stored, tied = sum(each.numel() for each in exported.parameters()), exported.config.tie_word_embeddings
    with _staging(target) as staging:
        exported.save_pretrained(staging)
        tokenizer_of(model.vocab).save_pretrained(staging)
        text = card(record, model.config, chosen, degree, stored=stored, tied=tied)
        (staging / "README.md").write_text(text, encoding="utf-8")
        files = _move(staging, target)
    return Exported(target, files, chosen, degree, tied, stored, record.get("parameters"))


def _check_finished(run: Path, record: Mapping[str, Any]) -> None:
    status = record.get("status")
    if status != "finished":
        raise InputError(f"{run}: this run has not finished (status {status!r}); continue it: {resume_command(run)}")


def _check_target(target: Path, force: bool) -> None:
    try:
        if not target.exists():
            return
        names = {entry.name for entry in target.iterdir()}
        is_export = "config.json" in names and _is_ours(target / "config.json")
    except (OSError, ValueError) as error:
        raise InputError(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if "config.toml" in names:
        raise InputError(f"{target} is a run folder, whose files an export would replace; choose another folder")
    if names and not is_export:
        raise InputError(f"{target} is not empty and holds no earlier export; choose a new folder")
    if names and not force:
        raise InputError(f"{target} holds an export already; replace it with --force, or choose another folder")


def _is_ours(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("model_type") == "varsmooth"


def _temperature(run: Path, record: Mapping[str, Any], predict: str, asked: float | Literal["auto"]) -> float:
    if isinstance(asked, str) and asked != "auto":
        raise InputError(f"temperature takes a number or auto, got {asked!r}")
    if asked != "auto":
        check_temperature("--temperature", asked)
        return asked
    if (found := result_of(record, "valid", predict, tuned=True)) is not None:
        return float(found["temperature"])
    raise InputError(f"{run}: its record has no tuned temperature for prediction by {predict}; give --temperature a number")


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Yield a folder beside ``target`` that is gone afterwards, however the block ends."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from None
    try:
        yield staging
    except Exception as error:
        # Libraries in Rust do not raise OSError: safetensors has an exception of its own, tokenizers a bare one.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise InputError(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(staging: Path, target: Path) -> tuple[str, ...]:
    """Put the files in place: a new folder appears as a whole, in an old one each file is replaced, its weights first."""
    names = sorted((entry.name for entry in staging.iterdir()), key=lambda name: (not name.endswith(".safetensors"), name))
    for name in names:
        (staging / name).chmod(0o666 & ~UMASK)
    if target.exists() and any(target.iterdir()):
        for name in names:
            (staging / name).replace(target / name)
    else:
        staging.chmod(0o777 & ~UMASK)
        staging.replace(target)  # also over an empty folder
    sync_folder(target.parent)
    return tuple(sorted(names))
