"""From the start of the process to the command line, which takes seconds to import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import varsmooth
from processes_for_tests import PATIENCE, started

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULE, FUNCTION = PROJECT["scripts"]["varsmooth"].split(":")
SCRIPT = f"from {MODULE} import {FUNCTION} as start; start()"


def test_the_package_is_imported_without_torch() -> None:
    program = "import sys, varsmooth; assert 'torch' not in sys.modules; varsmooth.Proposal; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
    with pytest.raises(AttributeError, match="module 'varsmooth' has no attribute 'smoothe'"):
        _ = varsmooth.smoothe


@pytest.mark.parametrize("start", [["-m", "varsmooth"], ["-c", SCRIPT]], ids=["module", "script"])
def test_ctrl_c_ends_the_imports(start: list[str], tmp_path: Path) -> None:
    # As some imports do, this one makes another error of it.
    code = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException: raise ImportError from None\n"
    (tmp_path / "torch.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with started([*start, "recipes"], env={"PYTHONPATH": path}) as process:
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_a_verb_finds_ctrl_c_as_the_process_did(handler: str) -> None:
    begin = f"import atexit, signal; signal.signal(signal.SIGINT, signal.{handler})"
    end = f"atexit.register(lambda: print(signal.getsignal(signal.SIGINT) == signal.{handler}))"
    with started(["-c", f"{begin}; {end}; {SCRIPT}", "recipes", "--json"]) as process:
        shown, _ = process.communicate(timeout=PATIENCE)
    assert shown.endswith("}\nTrue\n")
