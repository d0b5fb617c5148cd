"""varsmooth export"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from varsmooth.cli.app import app
from varsmooth.cli.output import say
from varsmooth.errors import InputError
from varsmooth.posterior import Predict


@app.command
def export(
    run: Path,
    folder: Path,
    *,
    to: Literal["hf"],
    predict: Predict | None = None,
    temperature: str = "1",
    force: bool = False,
    json_: bool = False,
) -> None:
    """Write a finished run as a folder for the Hugging Face library transformers: model, tokenizer and model card.

    After `import varsmooth.hf`, `AutoModelForCausalLM.from_pretrained(FOLDER)` loads the model, and
    `AutoTokenizer.from_pretrained(FOLDER)` the tokenizer. The tables that predict are written, so the folder
    predicts as the run does.

    Examples:

        varsmooth export runs/kn --to hf kn-model
        varsmooth export runs/kn --to hf kn-model --temperature auto --force

    Parameters
    ----------
    run
        The run's folder.
    folder
        The folder to write; it must be new or empty.
    to
        The format.
    predict
        Which table predicts; the default is the recipe's own.
    temperature
        What logits are divided by: a number, or `auto` for the one that the run found best on valid.
    force
        Replace an earlier export.
    json_
        Print one JSON object.
    """
    degree = _temperature(temperature)
    from varsmooth import hf  # here, as it takes seconds and says what to install where transformers is missing

    hf.quiet()
    found = hf.export(run, folder, predict=predict, temperature=degree, force=force)
    if json_:
        print(json.dumps({**asdict(found), "folder": str(found.folder), "to": to}))
        return
    others = found.trained_parameters not in (None, found.parameters)
    trained = f" (the run trained {found.trained_parameters:,}: README.md says why)" if others else ""
    say(f"predicts by {found.predict} at temperature {found.temperature:g}; {found.parameters:,} parameters{trained}")
    say(f"folder: {found.folder}")


def _temperature(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--temperature takes a number or auto, got {text!r}") from None
