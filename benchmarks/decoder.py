"""Smoothing on a small GPT-2-style decoder at word level: perplexity of four arms with one budget, and what a step costs.

python benchmarks/decoder.py train --out results/decoder --data-dir DATA      # arms, trials, seeds, data sets; a record each
python benchmarks/decoder.py overhead --out results/decoder --data-dir DATA   # steps of all arms, taking turns
python benchmarks/decoder.py table --out results/decoder                      # means over seeds, and the trials

Arms: ``plain`` has no dropout and no smoothing, ``dropout`` that of GPT-2; ``word`` and ``element`` add Kneser-Ney smoothing of
both ends of the tied table to that dropout. Each but ``plain`` has the same number of trials with the first seed, of dropout
and gamma; the best on the development set, at its tuned temperature, is trained with the other seeds. All have the same weight
decay, lambda, steps and order of windows. The model with the best development perplexity is kept. A record that exists is left
alone, so a run may be cut into pieces.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoder_measuring import measured
from decoder_model import Decoder
from decoder_records import ARMS, Trial, chosen, own, path_of, table, trials_of
from varsmooth import Counts, InputError, Proposal, SmoothingHandle, open_corpus, smooth
from varsmooth.bench.timing import Turns, ratio, stopwatch_for
from varsmooth.files import write_atomically
from varsmooth.text import Corpus
from varsmooth.train.captured import WARM_UP, Captured
from varsmooth.train.environment import environment


@dataclass(frozen=True)
class Settings:
    """What all arms share."""

    width: int = 256
    layers: int = 6
    heads: int = 4
    batch: int = 64
    window: int = 128
    tokens: int = 28_000_000
    lr: float = 1e-3
    warm_up: int = 200
    weight_decay: float = 0.1
    clip: float = 1.0
    dropout: float = 0.3
    gamma: float = 0.2
    l2: float = 1e-4
    evaluations: int = 14
    engine: str = "auto"

    @property
    def steps(self) -> int:
        return max(1, self.tokens // (self.batch * self.window))


class Training:
    """One arm in training; everything a step reads lies in tensors whose places stay, so that a GPU can replay it."""

    def __init__(self, arm: str, corpus: Corpus, settings: Settings, seed: int, device: torch.device) -> None:
        self.settings, self.device, self.smoothing = settings, device, ARMS[arm]
        words = len(corpus.vocab)
        torch.manual_seed(seed)
        dropout = 0.0 if arm == "plain" else settings.dropout
        self.model = Decoder(words, settings.width, settings.layers, settings.heads, settings.window, dropout).to(device)
        self.stream = torch.as_tensor(corpus.train).long().to(device)
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.handle: SmoothingHandle | None = None
        if self.smoothing is not None:
            proposal = Proposal.kneser_ney(Counts.from_ids(corpus.train, words), settings.gamma)
            self.handle = smooth(self.model, proposal, **self.smoothing, seed=seed, advance="manual")
            self.handle.step(self.counter)
        self.lr = torch.zeros((), device=device)
        self.optimizer = self._optimizer()
        order = torch.Generator().manual_seed(seed)
        self.starts = torch.randint(len(self.stream) - settings.window, (settings.steps, settings.batch), generator=order).to(
            device
        )
        self.offsets = torch.arange(settings.window + 1, device=device)
        self.rows = torch.zeros(settings.batch, settings.window + 1, dtype=torch.int64, device=device)
        self.engine = "eager" if device.type != "cuda" or settings.engine == "eager" else "graph"
        self._captured = Captured(self._step) if self.engine == "graph" else None
        self.taken = 0

    def step(self) -> Tensor:
        """Take the next step and return its loss, which the one after it overwrites."""
        self.rows.copy_(self.stream[self.starts[self.taken % len(self.starts)][:, None] + self.offsets])
        self.lr.fill_(self._rate(self.taken))
        self.counter.fill_(self.taken)
        self.taken += 1
        if self._captured is None:
            return self._step()
        try:
            return self._captured()
        except RuntimeError as error:
            if self.settings.engine == "graph" or self._captured.graph is not None:
                raise
            print(json.dumps({"warning": f"no CUDA graph, steps run one launch at a time: {error}"}), flush=True)
            self.engine, self._captured = "eager", None
            return self._step()

    def _step(self) -> Tensor:
        settings, model = self.settings, self.model
        inputs, targets = self.rows[:, :-1], self.rows[:, 1:]
        if self.smoothing is not None and self.smoothing["output"] == "target" and self.handle is not None:
            self.handle.labels(targets)
        # No cache: in a captured step it would hold on to tensors of the capture.
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        penalty = 0.5 * model.words.weight.square().sum() if self.handle is None else self.handle.kl()
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss + settings.l2 / settings.window * penalty, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
        self.optimizer.step()
        return loss.detach()

    def _optimizer(self) -> torch.optim.AdamW:
        """Weights decay but for the table, which has its own penalty, and vectors."""
        table = self.model.words.weight
        decays = [each for each in self.model.parameters() if each.dim() > 1 and each is not table]
        others = [each for each in self.model.parameters() if each.dim() < 2 or each is table]
        groups = [{"params": decays, "weight_decay": self.settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.lr, betas=(0.9, 0.95), fused=True, capturable=self.device.type == "cuda")

    def _rate(self, step: int) -> float:
        settings = self.settings
        rising = min(1.0, (step + 1) / min(settings.warm_up, settings.steps))
        return settings.lr * rising * 0.5 * (1 + math.cos(math.pi * min(1.0, step / settings.steps)))


def train(arm: str, corpus: Corpus, settings: Settings, seed: int, device: torch.device) -> dict[str, Any]:
    """Train one arm and return its record."""
    began = time.perf_counter()
    run, eos = Training(arm, corpus, settings, seed, device), corpus.vocab.eos_id
    parameters = list(run.model.parameters())
    best, best_step, best_nll, curve = [each.detach().clone() for each in parameters], 0, math.inf, []
    every, stepping = max(1, settings.steps // settings.evaluations), 0.0
    for step in range(1, settings.steps + 1):
        clock = time.perf_counter()
        loss = run.step()
        stepping += time.perf_counter() - clock
        if step % every == 0 or step == settings.steps:
            clock = time.perf_counter()
            train_nll = float(loss)  # waits for the steps
            stepping += time.perf_counter() - clock
            nll = measured(run.model, corpus.valid, eos, settings.window, (1.0,))[0]["nll"]
            curve.append({"step": step, "train_nll": train_nll, "valid_nll": nll})
            if nll < best_nll:
                best_nll, best_step = nll, step
                torch._foreach_copy_(best, parameters)
    with torch.no_grad():
        torch._foreach_copy_(parameters, best)
    results = _results(run.model, corpus, "mode" if run.handle is None else "mean")
    if run.handle is not None:
        run.handle.remove()
        results += _results(run.model, corpus, "mode")
    return {
        "benchmark": "decoder",
        "arm": arm,
        "data": corpus.name,
        "vocab_checksum": corpus.vocab.checksum,
        "seed": seed,
        "config": {**asdict(settings), "dropout": run.model.dropout, "smoothing": run.smoothing},
        "engine": run.engine,
        "parameters": sum(each.numel() for each in parameters),
        "steps": settings.steps,
        "epochs": settings.steps * settings.batch * settings.window / len(corpus.train),
        "ms_per_step": 1000 * stepping / settings.steps,
        "seconds": time.perf_counter() - began,
        "best_step": best_step,
        "curve": curve,
        "results": results,
        **environment(device),
    }


def _results(model: Decoder, corpus: Corpus, predict: str) -> list[dict[str, Any]]:
    """Return valid and test at temperature 1 and at that tuned on valid."""
    eos, stride = corpus.vocab.eos_id, max(1, model.window // 2)
    valid = measured(model, corpus.valid, eos, stride, (1.0, None))
    test = measured(model, corpus.test, eos, stride, (1.0, valid[1]["temperature"]))
    results = []
    for split, both in (("valid", valid), ("test", test)):
        for tuned, found in enumerate(both):
            figures = {**found, "perplexity": math.exp(min(found["nll"], 700))}
            results.append({"split": split, "predict": predict, "tuned_temperature": bool(tuned), **figures})
    return results


def overhead(corpus: Corpus, settings: Settings, device: torch.device, calls: int, repeats: int) -> dict[str, Any]:
    """Return the milliseconds of a step of each arm, taking turns, and the ratio to the arm with dropout alone."""
    runs = {arm: Training(arm, corpus, settings, 1, device) for arm in ARMS}
    for run in runs.values():
        for _ in range(WARM_UP + 2):
            run.step()
    times = Turns(calls, repeats, 60.0, stopwatch_for(device)).time({arm: run.step for arm, run in runs.items()})
    return {
        "benchmark": "decoder-overhead",
        "data": corpus.name,
        "config": asdict(settings),
        "engines": {arm: run.engine for arm, run in runs.items()},
        "ms_per_step": {arm: statistics.median(some) for arm, some in times.items()},
        "times": times,
        "ratio_to_dropout": {arm: asdict(ratio(times, arm, "dropout")) for arm in ARMS},
        **environment(device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "overhead", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["ptb", "wikitext-2"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--max-tokens", type=int, help="cut each split after this many tokens")
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=15)
    own_flags = {name: value for name, value in asdict(Settings()).items() if name not in Trial._fields}
    for name, value in own_flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args())
    if options["what"] == "table":
        print(table(options["out"], options["seeds"]))
        return
    settings = replace(Settings(), **{name: options[name] for name in own_flags})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options["out"].mkdir(parents=True, exist_ok=True)
    for data in options["data"]:
        corpus = open_corpus(data, data_dir=options["data_dir"], max_tokens=options["max_tokens"])
        if options["what"] == "overhead":
            record = overhead(corpus, settings, device, options["calls"], options["repeats"])
            _write(options["out"] / f"{corpus.name}-overhead.json", record)
            print(json.dumps({key: record[key] for key in ("data", "ms_per_step", "ratio_to_dropout")}), flush=True)
            continue
        first, *others = options["seeds"]
        for arm in options["arms"]:
            for trial in trials_of(corpus.name, arm):
                _train(options["out"], corpus, arm, trial, settings, first, device)
        for seed in others:
            for arm in options["arms"]:
                if best := chosen(options["out"], corpus.name, arm, first):
                    _train(options["out"], corpus, arm, best, settings, seed, device)


def _train(folder: Path, corpus: Corpus, arm: str, trial: Trial, settings: Settings, seed: int, device: torch.device) -> None:
    """Train what has no record yet, and print its perplexity."""
    path = path_of(folder, corpus.name, arm, trial, seed)
    if path.exists():
        return
    settings = replace(settings, dropout=trial.dropout, gamma=settings.gamma if trial.gamma is None else trial.gamma)
    record = train(arm, corpus, settings, seed, device)
    _write(path, record)
    shown = {key: round(record[key], 3) for key in ("ms_per_step", "seconds")}
    shown |= {f"{split} perplexity, tuned": round(own(record, split), 2) for split in ("valid", "test")}
    print(json.dumps({"record": path.name, **shown}), flush=True)


def _write(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())  # half a record would be taken for a whole one


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"decoder: {error}", file=sys.stderr)
        sys.exit(2)
