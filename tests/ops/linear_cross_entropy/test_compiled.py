"""The kernels compile for a GPU that need not be there: what the interpreter accepts, the compiler may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, cast

import pytest

pytest.importorskip("triton")

from varsmooth.ops.linear_cross_entropy import passes

pytestmark = pytest.mark.slow

# In a process of its own, because Triton decides once whether it interprets.
PROGRAM = """
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from varsmooth.ops.linear_cross_entropy import passes


def ptx(kernel, types, constants, aligned):
    kernel = getattr(passes, kernel)
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    place = kernel.arg_names.index
    constexprs = {(place(name),): value for name, value in constants.items() if name in signature}
    pointers_and_sizes = [name for name in aligned if signature.get(name, "constexpr") != "constexpr"]
    attributes = {(place(name),): [["tt.divisibility", 16]] for name in pointers_and_sizes}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


print(json.dumps({name: ptx(*request) for name, request in json.loads(sys.argv[1]).items()}))
"""
VECTORS = {"targets": "*i64", "replaced": "*i1", "other": "*fp32", "nll": "*fp32", "grad": "*fp32", "d_other": "*fp32"}
SIZES = ("stride", "statistics_stride", "grad_stride", "count", "columns")
TYPES = VECTORS | {"bias": "*fp32", "statistics": "*fp32", "sums": "*fp32"} | dict.fromkeys(SIZES, "i32")
ALIGNED = ("logits", "stride", "bias", "targets", "replaced", "other", "nll", "statistics", "grad", "d_other", "sums")
GRADIENT = {
    "SUM_ROWS": True,
    "ROWS": passes._ROWS_PER_GRADIENT_PROGRAM,
    "STEP": passes._ROWS_PER_GRADIENT_STEP,
    "WIDTH": passes._COLUMNS_PER_GRADIENT_PROGRAM,
}
# As launched for one row of one column: Triton makes constants of the integers 1 and of None.
LEAST = dict.fromkeys(("columns", "count", "statistics_stride", "grad_stride", "LANES", "WIDTH"), 1)
LEAST |= dict.fromkeys(("bias", "replaced", "other", "d_other", "sums"))
LEAST |= dict.fromkeys(("HAS_BIAS", "REPLACES", "SUM_ROWS"), False)


def _requests() -> dict[str, Any]:
    """What to compile; in none is ``columns`` known to be a multiple of anything."""
    requests = {}
    for dtype, size in (("bf16", 2), ("fp32", 4)):
        lane = 16 // size
        constants = GRADIENT | {
            "LANE": lane,
            "LANES": passes._COLUMNS_PER_LOSS_STEP // lane,
            "HAS_BIAS": True,
            "REPLACES": True,
        }
        for kernel in ("_loss_kernel", "_gradient_kernel"):
            types = TYPES | {"logits": f"*{dtype}"}
            requests[f"{kernel} {dtype}"] = (kernel, types, constants, ALIGNED)
            requests[f"{kernel} {dtype} least"] = (kernel, types, constants | LEAST, ALIGNED)
    return requests


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(_requests())],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cast(dict[str, str], json.loads(done.stdout))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_logits_travel_16_bytes_at_a_time(ptx: dict[str, str], dtype: str) -> None:
    loss, gradient = ptx[f"_loss_kernel {dtype}"], ptx[f"_gradient_kernel {dtype}"]
    assert "ld.global.v4.b32" in loss
    assert "ld.global.v4.b32" in gradient
    assert "st.global.v4.b32" in gradient
    # The one of 16 bits is the target's own logit, or two of ``replaced``.
    assert loss.count("ld.global.b16") <= 1
    assert gradient.count("ld.global.b16") <= 1
    assert "st.global.b16" not in gradient


@pytest.mark.parametrize("kernel", ["_loss_kernel", "_gradient_kernel"])
def test_one_row_of_one_column_compiles(ptx: dict[str, str], kernel: str) -> None:
    assert all("ld.global" in ptx[f"{kernel} {dtype} least"] for dtype in ("bf16", "fp32"))
