"""The model card: what a model is, how to load it, and what its run measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varsmooth.config import Config

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- varsmooth
- variational-smoothing
- word-level
---

# {title}

A word-level {cell} language model with {layers} of {hidden} units over {words:,} words, trained on
{data} by varsmooth {version} with the recipe `{recipe}`, seed {seed}. {smoothing}
Exported to predict by the {predict}, at temperature {temperature:g}. {parameters}

```python
import varsmooth.hf  # pip install 'varsmooth[hf]'; registers the model
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(PATH)
model = AutoModelForCausalLM.from_pretrained(PATH)
prompt = tokenizer("return the", return_tensors="pt")  # words separated by spaces; <eos> comes first
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20)[0], skip_special_tokens=True))
```

Words that the vocabulary lacks become `<unk>`, if it has that; `<unk>` is never generated.

## Perplexity

Every token counted once, the state carried through the whole split, `<eos>` at the end of each line. Tuned: at the temperature
that is best on the development set.

| split | predicted by | temperature | perplexity | tokens |
| --- | --- | ---: | ---: | ---: |
{rows}

Best model: step {best_step} of {steps}. Commit {commit}; torch {torch}.
"""


def card(record: Mapping[str, Any], config: Config, predict: str, temperature: float, *, stored: int, tied: bool) -> str:
    """Return the card's Markdown; ``stored``: the parameters in the folder. Of a data folder only its last part is told."""
    data, versions, best = record.get("data") or {}, record.get("versions") or {}, record.get("best") or {}
    name = str(data.get("name") or config.data.name)
    layers = config.model.layers
    return CARD.format(
        title=f"{record.get('recipe') or config.name or 'A run'} on {Path(name).name or name}",
        cell=config.model.cell.upper(),
        layers=f"{layers} layer{'s' if layers > 1 else ''}",
        hidden=config.model.hidden,
        words=data.get("vocab_size") or 0,
        parameters=_parameters(stored, record.get("parameters"), tied, config),
        data=f"`{Path(name).name or name}`",
        version=versions.get("varsmooth", "of an unknown version"),
        recipe=record.get("recipe") or config.name,
        seed=config.train.seed,
        smoothing=_smoothing(config),
        predict=predict,
        temperature=temperature,
        rows="\n".join(_row(result) for result in record.get("results") or []),
        best_step=best.get("step", "unknown"),
        steps=record.get("steps", "unknown"),
        commit=record.get("commit") or "unknown",
        torch=versions.get("torch", "unknown"),
    )


def _parameters(stored: int, trained: int | None, tied: bool, config: Config) -> str:
    """Say how many there are, and why where the run trained another number."""
    if trained is None or trained == stored:
        return f"It has {stored:,} parameters."
    why = ["the recurrent layers of torch have a second bias, here zero"]
    if config.model.tied and not tied:
        why.append("the mean that is read is another table than the one that scores")
    if config.smoothing.scheme == "blank" and config.smoothing.method != "none":
        why.append("the blank row is left out")
    return f"It has {stored:,} parameters where the run trained {trained:,}: {'; '.join(why)}."


def _smoothing(config: Config) -> str:
    how = config.smoothing
    if how.method == "none":
        return f"No smoothing; table dropout {config.dropout.tables:g}."
    kind = "Data noising" if how.method == "noising" else "Variational smoothing"
    return f"{kind}: {how.scheme}, gamma {how.gamma:g}, by {how.granularity}, output {how.output}."


def _row(result: Mapping[str, Any]) -> str:
    perplexity = result.get("perplexity")
    samples = f" ({result['samples']}, {result.get('average')})" if result.get("samples") else ""
    cells = (
        result.get("split"),
        f"{result.get('predict')}{samples}",
        f"{result.get('temperature') or 1:.3f}{' (tuned)' if result.get('tuned_temperature') else ''}",
        "not finite" if perplexity is None else f"{perplexity:.2f}",
        f"{result.get('tokens') or 0:,}",
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"
