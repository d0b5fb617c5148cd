"""One run from beginning to end: resolve, build, fit, evaluate, record.

A run is a generator that gives way after each step and returns its record: one run is exhausted, a fleet takes turns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch

from varsmooth.config import Config, load_config, to_toml
from varsmooth.errors import InputError
from varsmooth.evaluate import DevelopmentSet, Evaluation, LanguageModel
from varsmooth.experiment.failures import NO_MEMORY, failure
from varsmooth.experiment.opening import (
    auto_config,
    finished_record,
    opening_record,
    refuse_other_settings,
    refuse_other_text,
    unknown_words_explained,
)
from varsmooth.experiment.results import development_set, final_results
from varsmooth.experiment.session import Reporting, RunControl, Session, from_anywhere, lane_for, opened_session
from varsmooth.experiment.spent import Spent
from varsmooth.experiment.together import (
    folder_to_continue,
    folder_to_create,
    refuse_differences,
    validated,
    writer_for,
)
from varsmooth.text import Corpus, Vocab
from varsmooth.train.build import build_untrained, resolve_device
from varsmooth.train.checkpoint import load_latest_state, load_model
from varsmooth.train.display import RunDisplay, say
from varsmooth.train.folder import RunFolder, full_disk_named
from varsmooth.train.interruptions import Interrupted, Interruptions
from varsmooth.train.lane import Lane, settled
from varsmooth.train.loop import Outcome, fit
from varsmooth.train.model_file import save_network
from varsmooth.train.parallel import is_first
from varsmooth.train.record import Record, record_or_empty
from varsmooth.train.trainer import NotFiniteError, Trainer

Steps: TypeAlias = Generator[None, None, Record]
"""A run: the first ``next`` builds it, each further one takes a step, and its end carries the record."""


def start_run(config: Config, out: Path, reporting: Reporting) -> Record:
    """Train a new run into the folder ``out`` and return its record."""
    with opened_session(reporting, resolve_device(config.train.device)) as session:
        return _exhausted(new_run(config, out, session), lane_for(config), session.interruptions)


def resume_run(run: Path, reporting: Reporting) -> Record:
    """Go on with a run where its last state left it, bit for bit on the CPU, and return its record.

    One that has finished stays as it is: to evaluate it again could only lose its figures.
    """
    folder = RunFolder.open(run)
    config = load_config(folder.config_path)
    if (kept := finished_record(folder, config)) is not None:
        if is_first():
            say(reporting.console, f"{run} has finished: nothing was trained or written; its figures:")
        return kept
    with opened_session(reporting, resolve_device(config.train.device)) as session:
        return _exhausted(continued_run(run, session), lane_for(config), session.interruptions)


def new_run(config: Config, out: Path, session: Session, control: RunControl | None = None) -> Steps:
    """A run that trains into the new folder ``out``; a configuration that cannot be built leaves no folder."""
    config, ranks = from_anywhere(config), session.ranks
    with ranks.first_here_goes_first():
        corpus = session.corpora.of(config)
    trainer = _trainer(config, corpus, session)
    refuse_differences(ranks, config, corpus, trainer)
    with folder_to_create(out, ranks) as folder:
        if ranks.first:
            folder.write(folder.config_path, to_toml(config).encode())
            _describe(folder, config, corpus.vocab)
        return (yield from _Run(folder, config, corpus, trainer, session, control or RunControl()).train())


def continued_run(run: Path, session: Session, control: RunControl | None = None) -> Steps:
    """A run that goes on where its last state left it; one that has finished gives way once and returns its record."""
    ranks = session.ranks
    with folder_to_continue(run, ranks) as folder:
        config = load_config(folder.config_path)
        if (kept := finished_record(folder, config)) is not None:
            yield
            return kept
        vocab = Vocab.load(folder.vocab_path) if folder.vocab_path.exists() else None
        record = record_or_empty(folder)
        refuse_other_settings(folder, record, config, vocab)
        with ranks.first_here_goes_first(), unknown_words_explained(folder.path, "started", when=vocab is not None):
            corpus = session.corpora.of(config, vocab)
        trainer = _trainer(config, corpus, session)
        refuse_other_text(folder, record, corpus)
        if ranks.first:
            _describe(folder, config, corpus.vocab)

        def warn(warning: str) -> None:
            session.screen.say(f"warning: {warning}")

        state = load_latest_state(folder, warn)
        if state is not None:
            trainer.restore(state.tensors, state.meta)
            _check_best(folder, config, trainer, warn)
        refuse_differences(ranks, config, corpus, trainer)
        if ranks.first:
            folder.truncate_metrics(trainer.progress.step)
        spent = Spent.of_record(record)
        return (yield from _Run(folder, config, corpus, trainer, session, control or RunControl(), spent).train())


def _describe(folder: RunFolder, config: Config, vocab: Vocab) -> None:
    """Write what is to be read of a run beside its configuration; one that is resumed may lack it, or have it damaged."""
    folder.write(folder.auto_path, json.dumps(auto_config(config, vocab), indent=2).encode())
    with full_disk_named(folder.vocab_path):
        vocab.save(folder.vocab_path)


def _check_best(folder: RunFolder, config: Config, trainer: Trainer, warn: Callable[[str], None]) -> None:
    """Have the best model found again where the file is lost: to be told so after the last step would be too late."""
    progress = trainer.progress
    if progress.best_step == 0:
        return
    try:
        load_model(folder.model_path)
    except InputError as error:
        lost = f"{error}; it is the best model, of step {progress.best_step}"
        if progress.step >= trainer.settings.steps:
            if not config.evaluate.final:  # then nothing asks for it
                return
            raise InputError(f"{lost}, and no evaluation is left; put it back, or start anew with another --out") from None
        warn(f"{lost}: unless you stop here and put it back, the best from now on takes its place")
        trainer.forget_best()


def advance(steps: Steps) -> Record | None:
    """Take a step; return the record where the run has come to its end."""
    try:
        next(steps)
    except StopIteration as end:
        return dict(end.value)
    return None


def _exhausted(steps: Steps, lane: Lane, interruptions: Interruptions) -> Record:
    with lane.entered():
        next(steps)  # builds; a signal ends that at once, as it ends any program
        with interruptions:
            while (record := advance(steps)) is None:
                lane.stepped()
                lane.wait()
            return record


def _trainer(config: Config, corpus: Corpus, session: Session) -> Trainer:
    device = resolve_device(config.train.device)
    network = build_untrained(config, session.corpora.counts_of(corpus))
    return Trainer(network, corpus.train, config.train, device, session.ranks)


@dataclass
class _Run:
    """A run under way: training, then the final evaluation, with a record that always says how far it came."""

    folder: RunFolder
    config: Config
    corpus: Corpus
    trainer: Trainer
    session: Session
    control: RunControl
    before: Spent = field(default_factory=Spent)
    """by the sessions before this one"""

    def __post_init__(self) -> None:
        self.began, self.first_step = time.perf_counter(), self.trainer.progress.step
        self.training_seconds: float | None = None
        self.opening = opening_record(self.config, self.corpus, self.trainer)

    def train(self) -> Steps:
        """Train to the end, or to a reason to stop, and return the record."""
        self.control.progress = self.trainer.progress
        self._record("running")
        yield
        try:
            outcome = yield from self._fit()
            self.training_seconds = time.perf_counter() - self.began
            self.session.ranks.leave()
            if not self.session.ranks.first:
                return self._record("followed")
            if outcome not in ("steps", "patience"):
                return self._stopped(outcome)
            results = yield from self._final_results()
        except Interrupted as interrupted:
            return self._stopped(interrupted.signal)
        except Exception as error:
            with suppress(OSError, InputError):  # where a full disk is the reason, there may be no room to say so
                self._record("failed", **failure(error))
            self._raise_told(error)
        return self._record("finished", stopped_because=outcome, results=results)

    def _fit(self) -> Generator[None, None, Outcome]:
        trainer, config, ranks = self.trainer, self.config, self.session.ranks
        validate = None
        if ranks.first:
            validate = partial(_perplexity, development_set(trainer.network, self.corpus, config))
        with writer_for(self.folder, ranks) as writer, self._display() as display:
            return (
                yield from fit(
                    trainer,
                    writer,
                    validate=partial(validated, trainer, validate),
                    save_best=lambda: save_network(writer, trainer.network, config, self.corpus.vocab, trainer.progress.step),
                    ending=lambda: self._record("running"),
                    reason_to_stop=lambda: self.control.stop or self.session.ranks.signal,
                    display=display,
                )
            )

    def _stopped(self, outcome: Outcome) -> Record:
        if isinstance(outcome, int):
            return self._record("stopped", stopped_because="signal", signal=outcome)
        return self._record("stopped", stopped_because=outcome)

    def _display(self) -> RunDisplay:
        settings, folder_name = self.config.train, self.folder.path.name
        return RunDisplay(
            self.session.screen,
            self.control.title or (folder_name if self.session.screen.shared else self.config.name or folder_name),
            settings.steps,
            self.first_step,
            settings.batch * settings.window,
            self.folder.path / "tensorboard" if self.session.tensorboard else None,
        )

    def _final_results(self) -> Generator[None, None, list[Record]]:
        """Evaluate the best model, giving way after each pass over a split; nothing is lost where a signal ends one."""
        if not self.config.evaluate.final:
            return []
        model = LanguageModel.load(self.folder.path, str(self.trainer.device))
        passes = final_results(model, self.corpus)
        results: list[Record] = []
        while True:
            with self.session.interruptions.at_once():
                try:
                    result = next(passes)
                except StopIteration:
                    return results
            results += [result] if result else []
            yield

    def _raise_told(self, error: Exception) -> NoReturn:
        """Raise the error as a person should read it."""
        if isinstance(error, torch.OutOfMemoryError):
            raise InputError(NO_MEMORY) from None
        step = self.trainer.progress.best_step
        if isinstance(error, NotFiniteError):
            kept = f"; the best model so far (step {step}) is kept in {self.folder.path}" if step else ""
            raise InputError(f"{error}, and start anew with another --out{kept}") from None
        raise error

    def _record(self, status: str, **outcome: Any) -> dict[str, Any]:
        """Return the record as it stands, as it was written where this is the process that writes."""
        progress, settings = self.trainer.progress, self.config.train
        seconds = time.perf_counter() - self.began
        spent = self.before.plus(seconds, progress.step - self.first_step, self.training_seconds or seconds)
        record = {
            **self.opening,
            "status": status,
            "steps": progress.step,
            **spent.figures(settings.batch * settings.window),
            "best": {"step": progress.best_step, "valid_perplexity": progress.best_perplexity},
            **outcome,
        }
        if not self.session.ranks.first:
            return record
        self.folder.write_record(record)
        return self.folder.read_record()


def _perplexity(development: DevelopmentSet) -> Generator[None, None, float]:
    """Give way while a GPU reads the development set."""
    nll = development.nll()
    yield from settled(nll.device)
    return Evaluation(float(nll), development.columns.tokens, development.predict).perplexity
