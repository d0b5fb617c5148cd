"""A look-up at the paper's largest size must not build a table: its memory is that of its output, times a small constant."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, json, re
from pathlib import Path
import torch
from varsmooth import EmbeddingPosterior, Proposal

def memory(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

V, D, T, B = 33_278, 1_024, 35, 64
weight = torch.ones(V, D)
q = EmbeddingPosterior(weight, Proposal(torch.full((V,), 0.2), torch.full((V,), 1 / V)), {granularity!r}, dropout=0.5)
q.lookup(torch.zeros(1, 1, dtype=torch.int64), 0)
ids = torch.arange(T * B).view(T, B) % V
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
drawn = q.lookup(ids, 1)
print(json.dumps({{"extra": memory("VmHWM") - before, "output": drawn.numel() * 4, "table": V * D * 4}}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak on Linux alone")
@pytest.mark.parametrize("granularity", ["word", "element"])
def test_lookup_takes_a_small_multiple_of_its_output(granularity):
    script = SCRIPT.format(granularity=granularity)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    memory = json.loads(result.stdout)
    assert memory["extra"] >= memory["output"] / 2, "the measurement saw nothing"
    assert memory["extra"] <= 5 * memory["output"]
    assert memory["extra"] < memory["table"]
