"""A look-up at the paper's largest size must not build a table: its memory is that of its output, times a small constant."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, torch
from varsmooth import EmbeddingPosterior, Proposal
V, D, T, B = 33_278, 1_024, 35, 64
probs = torch.full((V,), 1 / V)
weight = torch.ones(V, D)
q = EmbeddingPosterior(weight, Proposal(torch.full((V,), 0.2), probs), {granularity!r}, dropout=0.5)
q.lookup(torch.zeros(1, 1, dtype=torch.int64), 0)
ids = torch.arange(T * B).view(T, B) % V
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
drawn = q.lookup(ids, 1)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({{"extra": (after - before) * 1024, "output": drawn.numel() * 4, "table": V * D * 4}}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux alone")
@pytest.mark.parametrize("granularity", ["word", "element"])
def test_lookup_takes_a_small_multiple_of_its_output(granularity):
    script = SCRIPT.format(granularity=granularity)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    memory = json.loads(result.stdout)
    assert memory["extra"] >= memory["output"] / 2, "the measurement saw nothing"
    assert memory["extra"] <= 6 * memory["output"]
    assert memory["extra"] < memory["table"]
