"""varsmooth demo"""

from __future__ import annotations

import itertools
from pathlib import Path

from varsmooth.cli.app import app, errors
from varsmooth.cli.options import Whole
from varsmooth.cli.output import lasting_console
from varsmooth.demo import run_demo


@app.command
def demo(*, out: Path | None = None, seed: Whole = 1, steps: Whole | None = None) -> int:
    """Train three small models on the embedded corpus and compare them: about three minutes on two CPU cores.

    A plain model, one with Kneser-Ney smoothing and one with element-wise smoothing get the same text and the same number of
    steps. You get their table, a sentence scored and one written by each, and a page with the learning curves.

    Examples:

        varsmooth demo
        varsmooth demo --out runs/demo-2 --seed 2

    Parameters
    ----------
    out
        The folder to make; one run per model goes into it. The default is the first free of runs/demo, runs/demo-2, and so on.
    seed
        Of every random choice.
    steps
        Train each model for this many steps instead (a quick look; the models will not have converged).
    """
    if not run_demo(out or _free_folder(), seed, lasting_console(), steps):
        errors.print("varsmooth: the demonstration was stopped; start it again with another --out, or remove the folder")
        return 130
    return 0


def _free_folder() -> Path:
    names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
    return next(folder for name in names if not (folder := Path("runs") / name).exists())
