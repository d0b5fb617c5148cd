"""The figures to reach: on one H200 in bf16 (batch 64, window 35), and on two CPU cores."""

from __future__ import annotations

from varsmooth.bench.findings import Target
from varsmooth.bench.plan import PENN, WIKITEXT
from varsmooth.bench.workload import ELEMENT_BATCH, ELEMENT_SEQUENCE, VANILLA, WORD

STEP = "step"
RATIO = "over vanilla"
PEAK_MEMORY = "peak memory"
STEPS_TO_GOAL = "steps to a perplexity"
_NAMES = {PENN: "PTB", WIKITEXT: "WT2"}

# (quantity, size, words, scheme) -> start, reach, aim
_FIGURES: dict[tuple[str, int, int, str], tuple[float | None, float, float]] = {
    (STEP, 512, PENN, VANILLA): (2.3, 1.3, 0.8),
    (STEP, 1024, PENN, VANILLA): (4.0, 2.2, 1.6),
    (STEP, 512, WIKITEXT, VANILLA): (5.1, 2.2, 1.4),
    ("fleet of 8", 512, PENN, VANILLA): (1.63, 0.8, 0.5),
    (PEAK_MEMORY, 512, PENN, VANILLA): (None, 400, 200),
}
# A ratio is to be reached at every size; it was measured at the start at 512, PTB.
_RATIOS: dict[str, tuple[float | None, float, float]] = {
    ELEMENT_BATCH: (1.18, 1.08, 1.03),
    ELEMENT_SEQUENCE: (None, 1.15, 1.05),
    WORD: (1.12, 1.05, 1.02),
}
_CPU_RATIO = 1.25
"""element-wise over vanilla"""


def target_for(quantity: str, size: int, words: int, scheme: str, device_type: str) -> Target | None:
    """Return the figure to reach, where there is one."""
    name = f"{scheme}, {size}, {vocabulary_name(words)}, {quantity}"
    if device_type != "cuda":
        on_cpu = quantity == RATIO and scheme in (ELEMENT_BATCH, ELEMENT_SEQUENCE)
        return Target(name, reach=_CPU_RATIO) if on_cpu else None
    figures = _RATIOS.get(scheme) if quantity == RATIO else _FIGURES.get((quantity, size, words, scheme))
    if figures is None:
        return None
    start, reach, aim = figures
    if quantity == RATIO and (size, words) != (512, PENN):
        start = None
    return Target(name, reach, aim, start)


def vocabulary_name(words: int) -> str:
    return _NAMES.get(words, str(words))
