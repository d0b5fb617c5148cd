"""One run from beginning to end: resolve, build, fit, evaluate, record."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from varsmooth.config import Config, load_config, to_mapping, to_toml
from varsmooth.errors import InputError
from varsmooth.evaluate import LanguageModel, evaluate
from varsmooth.model import Predict, RecurrentLanguageModel
from varsmooth.text import Corpus, Vocab, open_corpus
from varsmooth.text.counts import Counts
from varsmooth.text.named import DESCRIPTIONS
from varsmooth.train.build import build_network, build_proposal, resolve_device
from varsmooth.train.checkpoint import load_latest_state
from varsmooth.train.display import RunDisplay
from varsmooth.train.environment import environment
from varsmooth.train.folder import RunFolder
from varsmooth.train.loop import Interrupted, Interruptions, Outcome, fit
from varsmooth.train.model_file import save_network
from varsmooth.train.trainer import NotFiniteError, Trainer

SMALL = 64
"""Units up to which a model counts as small."""


@dataclass(frozen=True)
class Reporting:
    """Where a run's progress goes."""

    console: Console
    tensorboard: bool = False


def corpus_of(config: Config, vocab: Vocab | None = None) -> Corpus:
    """Open the corpus that a configuration names."""
    data = config.data
    return open_corpus(
        data.name,
        data_dir=Path(data.data_dir) if data.data_dir else None,
        min_count=data.min_count or None,
        max_words=data.max_words or None,
        max_tokens=data.max_tokens or None,
        vocab=vocab,
    )


def start_run(config: Config, out: Path, reporting: Reporting) -> dict[str, Any]:
    """Train a new run into the folder ``out`` and return its record."""
    config = _from_anywhere(config)
    corpus = corpus_of(config)
    trainer = _trainer(config, corpus)
    with RunFolder.create(out) as folder:
        folder.write(folder.config_path, to_toml(config).encode())
        corpus.vocab.save(folder.vocab_path)
        return _Run(folder, config, corpus, trainer, reporting).train()


def resume_run(run: Path, reporting: Reporting) -> dict[str, Any]:
    """Go on with a run where its last state left it, bit for bit on the CPU, and return its record."""
    with RunFolder.open(run, lock=True) as folder:
        config = load_config(folder.config_path)
        corpus = corpus_of(config, Vocab.load(folder.vocab_path)) if folder.vocab_path.exists() else corpus_of(config)
        trainer = _trainer(config, corpus)
        record = folder.read_record() if folder.record_path.exists() else {}
        _refuse_changes(folder, record, config, corpus)
        corpus.vocab.save(folder.vocab_path)
        warn = partial(reporting.console.print, "warning:", soft_wrap=True, markup=False)
        state = load_latest_state(folder, warn)
        if state is not None:
            trainer.restore(state.tensors, state.meta)
        folder.truncate_metrics(trainer.progress.step)
        return _Run(folder, config, corpus, trainer, reporting, seconds=record.get("seconds") or 0.0).train()


def _from_anywhere(config: Config) -> Config:
    """Make the paths absolute, so that a run can be resumed from another folder than it was started in."""
    data = config.data
    name = data.name if data.name in DESCRIPTIONS else str(Path(data.name).absolute())
    return replace(config, data=replace(data, name=name, data_dir=data.data_dir and str(Path(data.data_dir).absolute())))


def set_threads(config: Config) -> None:
    """Choose the CPU threads; a small model is as fast with one, and stays fast when another program wants the cores."""
    threads = config.train.threads or (1 if config.model.hidden <= SMALL else 0)
    if threads:
        torch.set_num_threads(threads)


def _trainer(config: Config, corpus: Corpus) -> Trainer:
    set_threads(config)
    device = resolve_device(config.train.device)
    counts = Counts.from_ids(corpus.train, len(corpus.vocab))
    network = build_network(config, len(corpus.vocab), build_proposal(config, counts))
    return Trainer(network, corpus.train, config.train, device)


def _refuse_changes(folder: RunFolder, record: dict[str, Any], config: Config, corpus: Corpus) -> None:
    """Refuse to continue a run with another configuration, vocabulary or text than it was started with."""
    data, mapping, vocab = record.get("data", {}), to_mapping(config), corpus.vocab.checksum
    changed = [folder.config_path.name] if record.get("config", mapping) != mapping else []
    changed += [folder.vocab_path.name] if data.get("vocab_checksum", vocab) != vocab else []
    known = data.get("checksums", {})
    changed += [f"the {split} text" for split, checksum in corpus.checksums.items() if known.get(split, checksum) != checksum]
    if changed:
        raise InputError(
            f"{folder.path}: {changed[0]} has changed since this run was started; change it back or start a new run"
        )


@dataclass
class _Run:
    """A run under way: training, then the final evaluation, with a record that always says how far it came."""

    folder: RunFolder
    config: Config
    corpus: Corpus
    trainer: Trainer
    reporting: Reporting
    seconds: float = 0.0
    """spent before this process"""

    def __post_init__(self) -> None:
        self.began, self.first_step = time.perf_counter(), self.trainer.progress.step

    def train(self) -> dict[str, Any]:
        """Train to the end, or to a signal, and return the record."""
        self._record("running")
        try:
            outcome = self._fit()
        except NotFiniteError as error:
            self._record("failed", stopped_because="not finite")
            step = self.trainer.progress.best_step
            kept = f"; the best model so far (step {step}) is kept in {self.folder.path}" if step else ""
            raise InputError(f"{error}{kept}") from None
        if outcome.signal is not None:
            return self._record("stopped", stopped_because="signal", signal=outcome.signal)
        try:
            with Interruptions(at_once=True):
                results = final_results(LanguageModel.load(self.folder.path, str(self.trainer.device)), self.corpus)
        except Interrupted as interrupted:
            return self._record("stopped", stopped_because="signal", signal=interrupted.signal)
        return self._record("finished", stopped_because=outcome.reason, results=results)

    def _fit(self) -> Outcome:
        trainer, settings = self.trainer, self.config.train
        display = RunDisplay(
            self.reporting.console,
            self.config.name or self.folder.path.name,
            settings.steps,
            self.first_step,
            settings.batch * settings.window,
            self.folder.path / "tensorboard" if self.reporting.tensorboard else None,
        )
        with Interruptions() as interruptions, display:
            return fit(
                trainer,
                self.folder,
                validate=lambda: development_perplexity(trainer.network, self.corpus, self.config),
                save_best=lambda: save_network(
                    self.folder, trainer.network, self.config, self.corpus.vocab, trainer.progress.step
                ),
                interruptions=interruptions,
                display=display,
            )

    def _record(self, status: str, **outcome: Any) -> dict[str, Any]:
        """Write the record as it stands, and return it as it was written."""
        progress, settings = self.trainer.progress, self.config.train
        spent = time.perf_counter() - self.began
        tokens = (progress.step - self.first_step) * settings.batch * settings.window
        self.folder.write_record(
            {
                **_opening_record(self.config, self.corpus, self.trainer),
                "status": status,
                "steps": progress.step,
                "seconds": self.seconds + spent,
                "tokens_per_second": tokens / spent,
                "best": {"step": progress.best_step, "valid_perplexity": progress.best_perplexity},
                **outcome,
            }
        )
        return self.folder.read_record()


def development_perplexity(network: RecurrentLanguageModel, corpus: Corpus, config: Config) -> float:
    """Return the perplexity that chooses the best model: of the development set, read in columns."""
    settings = config.evaluate
    return evaluate(
        network,
        corpus.valid,
        corpus.vocab.eos_id,
        predict=config.smoothing.predict,
        batch=settings.batch,
        window=settings.window,
        burn_in=settings.burn_in,
    ).perplexity


def final_results(model: LanguageModel, corpus: Corpus) -> list[dict[str, Any]]:
    """Evaluate both held-out splits with every prediction the method has, each also at the temperature tuned on valid."""
    results = []
    for predict in predictions(model.network):
        tuned = model.best_temperature(corpus.valid, predict)
        for split, ids in (("valid", corpus.valid), ("test", corpus.test)):
            for is_tuned, temperature in ((False, 1.0), (True, tuned)):
                found = model.evaluate(ids, predict, temperature)
                results.append(
                    {
                        "split": split,
                        "predict": predict,
                        "temperature": temperature,
                        "tuned_temperature": is_tuned,
                        "perplexity": found.perplexity,
                        "nll": found.nll,
                        "tokens": found.tokens,
                        "samples": None,
                        "average": None,
                    }
                )
    return results


def predictions(network: RecurrentLanguageModel) -> list[Predict]:
    """Return the predictions that differ: the mode, and the means where something was smoothed."""
    if network.smoothing.proposal is None:
        return ["mode"]
    return ["mode", "mean"] if network.smoothing.output == "none" else ["mode", "mean", "mean-input"]


def _opening_record(config: Config, corpus: Corpus, trainer: Trainer) -> dict[str, Any]:
    return {
        "recipe": config.name,
        "seed": config.train.seed,
        "parameters": sum(parameter.numel() for parameter in trainer.network.parameters()),
        "steps_per_epoch": trainer.steps_per_epoch,
        "data": {
            "name": corpus.name,
            "vocab_size": len(corpus.vocab),
            "vocab_checksum": corpus.vocab.checksum,
            "checksums": corpus.checksums,
            "tokens": {"train": corpus.train.numel(), "valid": corpus.valid.numel(), "test": corpus.test.numel()},
        },
        "config": to_mapping(config),
        **environment(trainer.device),
        "results": [],
    }
