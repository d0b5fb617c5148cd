"""varsmooth eval, score and generate"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from varsmooth.cli.app import app, errors
from varsmooth.cli.options import Whole
from varsmooth.cli.output import OutputConsole
from varsmooth.config import checked
from varsmooth.config.sections import Device
from varsmooth.errors import InputError
from varsmooth.evaluate import Average, Evaluation, LanguageModel, PredictOrSample, Scales
from varsmooth.experiment import corpus_of, set_threads
from varsmooth.experiment.opening import changed_texts, unknown_words_explained
from varsmooth.files import for_json
from varsmooth.posterior import Predict
from varsmooth.text.reading import decode_lines, read_lines
from varsmooth.text.splits import Corpus, encode_file
from varsmooth.train.build import resolve_device
from varsmooth.train.folder import RunFolder
from varsmooth.train.record import readable_record, result_of

Split = Literal["train", "valid", "test"]
WORDS_NAMED = 5
Factors = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
"""Two numbers with a comma between them, of which the first may be negative, or auto."""


@app.command(name="eval")
def evaluate_run(
    run: Path,
    *,
    split: Split = "test",
    predict: PredictOrSample | None = None,
    samples: Whole | None = None,
    average: Average | None = None,
    temperature: str = "1",
    scales: Factors = None,
    batch: Whole = 1,
    seed: Whole | None = None,
    data: str | None = None,
    device: Device = "auto",
    json_: bool = False,
) -> None:
    """Measure the perplexity of a run's best model.

    Words that the vocabulary lacks are read as `<unk>` and count as `unknown`.

    Examples:

        varsmooth eval runs/kn
        varsmooth eval runs/kn --split valid --predict mean --temperature auto
        varsmooth eval runs/kn --scales auto --json
        varsmooth eval runs/kn --predict sample --samples 20 --average geometric
        varsmooth eval runs/kn --data article.txt

    Parameters
    ----------
    run
        The run's folder.
    split
        The part of the corpus to measure.
    predict
        Which table predicts; the default is the recipe's own.
    samples
        Draws of the tables, with `--predict sample`; 20 unless given.
    average
        Average the draws' probabilities (arithmetic, unless given) or their log-likelihoods (geometric).
    temperature
        A number, or `auto` for the one that is best on valid.
    scales
        Instead of a temperature: factors of what the context says and of the bias, such as `0.8,1`, or `auto` for those that
        are best on valid. With little text they bring more than a temperature.
    batch
        Columns to cut the split into. 1 carries the state through the whole split, as published figures do; more is faster, and
        each column then starts from a short context. There are at most as many columns as tokens.
    seed
        Of the draws, with `--predict sample`; 0 unless given.
    data
        Another data set or folder than the run's own, or a single text file, encoded with the run's vocabulary. All of a file
        is measured, whatever --split says, and `auto` is tuned on the run's own valid.
    device
        Where to compute.
    json_
        Print one JSON object.
    """
    if batch < 1:
        raise InputError(f"--batch must be at least 1, got {batch}")
    if scales is not None and temperature != "1":
        raise InputError("--scales takes the place of a temperature, and does not go with --temperature")
    model = _load(run, str(resolve_device(device)))
    rule = predict or model.predict
    for flag, given in (("--samples", samples), ("--average", average), ("--seed", seed)):
        if given is not None and rule != "sample":
            raise InputError(f"{flag} goes with --predict sample, and this predicts by the {rule}")
    file = data if data is not None and Path(data).is_file() else None
    # One file has no development set of its own.
    with unknown_words_explained(run, "trained", when=data is None):
        corpus = None if file and "auto" not in (temperature, scales) else _corpus(model, None if file else data)
    if corpus is not None and data is None:
        _tell_of_changes(run, corpus)
    degree, factors = _temperature(model, corpus, rule, temperature), _scales(model, corpus, rule, scales)
    ids = encode_file(Path(file), model.vocab) if file else getattr(corpus, split)
    count, kind = 20 if samples is None else samples, average or "arithmetic"
    found = model.evaluate(ids, rule, degree, batch=batch, samples=count, average=kind, seed=seed or 0, scales=factors)
    figures = _figures(found, Path(file).name if file else split, model.count_unknown(ids))
    if json_:
        print(json.dumps(figures))
    else:
        OutputConsole().print(_table(figures))


@app.command
def score(
    run: Path,
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)] = Path("-"),
    *,
    predict: Predict | None = None,
    scales: Factors = None,
) -> None:
    """Score each line of a text: one JSON object per line, as soon as the line is read.

    Every line stands alone. Its end counts as a token. Words that the vocabulary lacks count as `unknown`.

    Examples:

        varsmooth score runs/kn text.txt
        echo 'return the length of the list .' | varsmooth score runs/kn -
        varsmooth score runs/kn text.txt --scales auto

    Parameters
    ----------
    run
        The run's folder.
    file
        A text file, or - for standard input.
    predict
        Which table predicts; the default is the recipe's own.
    scales
        Factors of what the context says and of the bias, such as `0.8,1`, or `auto` for those that the run's record has, which
        are best on its valid.
    """
    if str(file).startswith("--"):
        raise InputError(f"unknown option {file}")
    model = _load(run)
    for scored in model.score(_lines(file), predict, _recorded_scales(run, model, predict, scales)):
        figures = {
            "log_probability": scored.log_probability,
            "tokens": scored.tokens,
            "perplexity": for_json(scored.perplexity),
            "unknown": scored.unknown,
        }
        print(json.dumps(figures), flush=True)


@app.command
def generate(
    run: Path,
    *,
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True)],
    words: Whole = 30,
    temperature: float = 1.0,
    top_k: Whole = 0,
    seed: Whole = 0,
    predict: Predict | None = None,
    scales: Factors = None,
    json_: bool = False,
) -> None:
    """Continue a prompt until the line ends or enough words are written.

    Examples:

        varsmooth generate runs/kn --prompt "return the" --words 20 --top-k 40
        varsmooth generate runs/kn --prompt "this method" --temperature 0.8 --seed 3

    Parameters
    ----------
    run
        The run's folder.
    prompt
        The words to start from, separated by spaces.
    words
        The most words to add.
    temperature
        Below 1 is safer, above 1 is wilder.
    top_k
        Choose among the k likeliest words; 0 for all.
    seed
        The same seed writes the same text.
    predict
        Which table predicts; the default is the recipe's own.
    scales
        Factors of what the context says and of the bias, such as `0.8,1`, or `auto` for those that the run's record has, which
        are best on its valid; the temperature comes on top.
    json_
        Print one JSON object.
    """
    checked("--prompt", prompt, str)
    model = _load(run)
    factors = _recorded_scales(run, model, predict, scales)
    text = model.generate(prompt, words, temperature=temperature, top_k=top_k, seed=seed, predict=predict, scales=factors)
    unknown = model.unknown(prompt.split())
    _tell_of_unknown(unknown, len(prompt.split()))
    print(json.dumps({"prompt": prompt, "text": text, "seed": seed, "unknown": len(unknown)}) if json_ else text)


def _load(run: Path, device: str = "cpu") -> LanguageModel:
    """Load a run's model and compute with the threads it was trained with."""
    model = LanguageModel.load(run, device)
    set_threads(model.config)
    return model


def _tell_of_changes(run: Path, corpus: Corpus) -> None:
    if changed := changed_texts(readable_record(run), corpus):
        errors.print(f"varsmooth: warning: the {changed[0]} text has changed since this run was trained")


def _tell_of_unknown(unknown: list[str], words: int) -> None:
    if unknown:
        distinct = list(dict.fromkeys(unknown))
        named = ", ".join(distinct[:WORDS_NAMED]) + (", ..." if len(distinct) > WORDS_NAMED else "")
        are = "is" if len(unknown) == 1 else "are"
        errors.print(f"varsmooth: {len(unknown)} of {words} words of the prompt {are} unknown to this run: {named}")


def _corpus(model: LanguageModel, data: str | None) -> Corpus:
    """Open the run's corpus, or another one, in the run's vocabulary."""
    config = model.config
    if data is not None:
        config = replace(config, data=replace(config.data, name=data, max_tokens=0))
    return corpus_of(config, model.vocab)


def _temperature(model: LanguageModel, corpus: Corpus | None, rule: PredictOrSample, temperature: str) -> float:
    if corpus is not None and temperature == "auto":
        if rule == "sample":
            raise InputError("--temperature auto goes with --predict mode, mean or mean-input; give a number with sample")
        return model.best_temperature(corpus.valid, rule)
    try:
        return float(temperature)
    except ValueError:
        raise InputError(f"--temperature takes a number or auto, got {temperature!r}") from None


def _scales(model: LanguageModel, corpus: Corpus | None, rule: PredictOrSample, scales: str | None) -> Scales | None:
    if scales is None or corpus is None or scales != "auto":
        return _two_factors(scales)
    if rule == "sample":
        raise InputError("--scales auto goes with --predict mode, mean or mean-input")
    return model.best_scales(corpus.valid, rule)


def _recorded_scales(run: Path, model: LanguageModel, predict: Predict | None, scales: str | None) -> Scales | None:
    if scales != "auto":
        return _two_factors(scales)
    rule = predict or model.predict
    found = (result_of(RunFolder(run).read_record(), "valid", rule, tuned=True) or {}).get("scaled")
    if not found or None in (found["context"], found["bias"]):
        raise InputError(f"{run}: its record has no scales for prediction by {rule}; 'varsmooth eval --scales auto' finds them")
    return Scales(found["context"], found["bias"])


def _two_factors(scales: str | None) -> Scales | None:
    if scales is None:
        return None
    try:
        context, bias = map(float, scales.split(","))
    except ValueError:
        told = "nothing" if scales.startswith("--") else repr(scales)  # the next option
        raise InputError(f"--scales takes two numbers with a comma between them, or auto; got {told}") from None
    return Scales(context, bias)


def _figures(found: Evaluation, split: str, unknown: int) -> dict[str, object]:
    figures: dict[str, object] = {
        "split": split,
        "perplexity": for_json(found.perplexity),
        "nll": found.nll,
        "tokens": found.tokens,
        "unknown": unknown,
        "predict": found.predict,
        "temperature": found.temperature,
    }
    if found.scales is not None:
        del figures["temperature"]
        figures |= {"scale_of_context": found.scales.context, "scale_of_bias": found.scales.bias}
    if found.samples is not None:
        figures |= {"samples": found.samples, "average": found.average}
    return figures


def _table(figures: dict[str, object]) -> Table:
    table = Table("figure", "value", show_header=False)
    for name, value in figures.items():
        table.add_row(
            name, f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        )
    return table


def _lines(file: Path) -> Iterator[str]:
    tokens = decode_lines(sys.stdin.buffer, "standard input") if str(file) == "-" else read_lines(file)
    for line in tokens:
        yield " ".join(line)
