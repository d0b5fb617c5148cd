"""The demonstration: three rows of the paper's table on the embedded corpus, with the same budget, in a few minutes."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from varsmooth.config import Config, with_values
from varsmooth.errors import InputError
from varsmooth.evaluate import LanguageModel
from varsmooth.experiment import Reporting, start_run
from varsmooth.recipe import load_recipe
from varsmooth.report.page import Sample, write_page
from varsmooth.report.plots import MissingPlotError, write_learning_curves
from varsmooth.report.runs import RunSummary, load_run
from varsmooth.report.tables import ResultsTable, build_rows
from varsmooth.train.display import say

# The best of ten trials for each arm on the development set (results/demo/tuning.json).
ARMS = {
    "vanilla/demo": {"train.lr": 0.00911, "dropout.tables": 0.6, "dropout.kind": "table"},
    "smoothing-kneser-ney/demo": {
        "train.lr": 0.0068,
        "dropout.tables": 0.5,
        "dropout.kind": "table",
        "smoothing.gamma": 0.1,
    },
    "element-kneser-ney/demo": {
        "train.lr": 0.0117,
        "dropout.tables": 0.5,
        "dropout.kind": "activation",
        "smoothing.scope": "position",
        "smoothing.gamma": 0.3,
    },
}
SENTENCE = "return a list of the names of the files in the directory ."
PROMPT = "return the"


def arm_configs(seed: int, steps: int | None = None) -> list[Config]:
    """Return the arms of the demonstration; ``steps`` shortens all of them alike."""
    configs = [with_values(load_recipe(arm), {**tuned, "train.seed": seed}, "--seed") for arm, tuned in ARMS.items()]
    return configs if steps is None else [with_values(config, {"train.steps": steps}, "--steps") for config in configs]


def run_demo(out: Path, seed: int, console: Console, steps: int | None = None) -> bool:
    """Train the arms, print their table, write the page; False when a signal stopped it."""
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; choose another --out, or remove it")
    configs = arm_configs(seed, steps)
    folders = [out / config.name.partition("/")[0] for config in configs]
    for number, (config, folder) in enumerate(zip(configs, folders, strict=True), start=1):
        console.print(f"[bold]arm {number} of {len(configs)}[/bold]: {config.name}", highlight=False)
        record = start_run(config, folder, Reporting(console))
        if record["status"] == "stopped":
            return False
    runs = [load_run(folder) for folder in folders]
    _print_table(runs, console)
    samples = [sample for folder in folders for sample in _samples(folder, seed, console)]
    _write_report(out, runs, samples, console)
    return True


def _print_table(runs: list[RunSummary], console: Console) -> None:
    rows = build_rows(runs)
    console.print(ResultsTable(rows))
    for run in runs:
        best, steps = run.record["best"]["step"], run.record["steps"]
        epochs = run.record["steps_per_epoch"]
        console.print(
            f"{run.recipe}: best after {best / epochs:.0f} of {steps / epochs:.0f} epochs, {run.record['seconds']:.0f} s",
            highlight=False,
        )


def _samples(folder: Path, seed: int, console: Console) -> list[Sample]:
    """Score a sentence and continue a prompt with one arm's model."""
    model = LanguageModel.load(folder)
    (scored,) = model.score([SENTENCE])
    text = model.generate(PROMPT, 20, temperature=0.8, seed=seed)
    console.print(f"{folder.name}: scores {SENTENCE!r} at perplexity {scored.perplexity:.1f}", highlight=False)
    console.print(f"{folder.name}: writes {text!r}", highlight=False, markup=False, emoji=False)
    return [
        Sample(folder.name, "scored", SENTENCE, perplexity=scored.perplexity, unknown=scored.unknown),
        Sample(folder.name, "generated", text, prompt=PROMPT),
    ]


def _write_report(out: Path, runs: list[RunSummary], samples: list[Sample], console: Console) -> None:
    page = out / "report.html"
    write_page(page, runs, title="varsmooth demonstration", samples=samples)
    try:
        write_learning_curves(out / "learning-curves.png", runs, title="Valid perplexity while training")
    except MissingPlotError as error:
        console.print(str(error), highlight=False)
    say(console, f"page: {page.resolve()}")
