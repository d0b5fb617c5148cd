"""What a result was made with: versions, hardware and the commit of the code."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from varsmooth.version import VERSION


def environment(device: torch.device) -> dict[str, Any]:
    """Return the part of a record that says where it was made; ``commit`` is None outside a checkout of this project."""
    return {
        "versions": {
            "varsmooth": VERSION,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            **({"triton": _triton_version()} if device.type == "cuda" else {}),
        },
        "hardware": {
            "device": device.type,
            "name": _device_name(device),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "commit": _commit(),
    }


def _triton_version() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _cpu_model() or platform.processor() or platform.machine()


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _commit() -> str | None:
    """Return the commit of the source tree this package runs from, marked where the tree has changes.

    A copy of the tree that does not know its own history can be told by ``VARSMOOTH_COMMIT``.
    """
    if told := os.environ.get("VARSMOOTH_COMMIT"):
        return told
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-modified" if changed else head


def _git(root: Path, *arguments: str) -> str:
    result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return result.stdout.strip()
