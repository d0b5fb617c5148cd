"""What is kept of a run that failed."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from varsmooth.config import Config, to_mapping, to_toml
from varsmooth.errors import InputError
from varsmooth.train.folder import DiskFullError, RunFolder
from varsmooth.train.parallel import LostError
from varsmooth.train.record import Record, record_or_empty
from varsmooth.train.trainer import NotFiniteError

NO_MEMORY = "out of GPU memory: train fewer runs at once, or lower train.batch or model.hidden"


def failure(error: Exception) -> Record:
    """Return what a record says of a failure: its kind and, in one line, its reason."""
    if isinstance(error, torch.OutOfMemoryError):
        return {"stopped_because": "out of memory", "reason": NO_MEMORY}
    reason = " ".join(str(error).split())
    if not isinstance(error, InputError):
        trace = "".join(traceback.format_exception(error))
        return {"stopped_because": "error", "reason": f"{type(error).__name__}: {reason}", "traceback": trace}
    kinds = {NotFiniteError: "not finite", DiskFullError: "disk full", LostError: "process lost"}
    return {"stopped_because": next((kinds[k] for k in kinds if isinstance(error, k)), "input"), "reason": reason}


def record_unbuilt(config: Config, out: Path, error: Exception) -> Record:
    """Record a run that could not even be built, or built anew; what its folder holds already stays."""
    failed = {"status": "failed", **failure(error)}
    record = {
        "recipe": config.name,
        "seed": config.train.seed,
        "config": to_mapping(config),
        "steps": 0,
        "seconds": 0.0,
        "best": {"step": 0, "valid_perplexity": None},
        "results": [],
        **failed,
    }
    try:
        begun = RunFolder(out).config_path.exists()
        with RunFolder.open(out, lock=True) if begun else RunFolder.create(out) as folder:
            if not begun:
                folder.write(folder.config_path, to_toml(config).encode())
            known = record_or_empty(folder)
            if known.get("status") != "finished":  # another process may have brought it to its end meanwhile
                folder.write_record({**record, **known, **failed})
            return folder.read_record()
    except (OSError, InputError):  # full, not writable or another process's: then nobody but the caller is told
        return record
