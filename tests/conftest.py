"""For all tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined: without a GPU kernels run in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing by a second thread, and lose much where another process wants the core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write how the run ended, and on what, to this JSON file")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Leave a record where a run cannot be repeated by everyone, as on a GPU."""
    from varsmooth.train.environment import environment  # not before the interpreter has been chosen

    path = config.getoption("--record")
    if path is None:
        return
    outcomes = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    failed = [report.nodeid for name in ("failed", "error") for report in terminalreporter.stats.get(name, [])]
    per_file: dict[str, int] = {}
    for report in terminalreporter.stats.get("passed", []):
        per_file[report.nodeid.partition("::")[0]] = per_file.get(report.nodeid.partition("::")[0], 0) + 1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record = {
        "exit_status": int(exitstatus),
        "selected": config.getoption("markexpr"),
        **outcomes,
        "failures": failed,
        "passed_per_file": dict(sorted(per_file.items())),
        **environment(device),
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
