"""Smooth a GPT-2 in the Trainer of transformers, on the docstrings of the standard library. Nothing is downloaded.

pip install 'varsmooth[hf]'
python examples/hf_trainer.py --steps 300 --out gpt2-smoothed
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from varsmooth import Counts, InputError, Proposal, open_corpus, smooth
from varsmooth.hf import SmoothingTrainer

WINDOW = 64


def rows(ids: Tensor) -> list[dict[str, Tensor]]:
    """Cut a stream into windows; the model shifts the labels itself, so the first is no target: not to be counted."""
    windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    targets = windows.clone()
    targets[:, 0] = -100
    return [{"input_ids": row, "labels": wanted} for row, wanted in zip(windows, targets, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="python")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", default="gpt2-smoothed")
    options = parser.parse_args()

    corpus = open_corpus(options.data)
    train, valid = (torch.as_tensor(ids).long() for ids in (corpus.train, corpus.valid))
    words = len(corpus.vocab)
    eos = corpus.vocab.eos_id
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=words, n_embd=64, n_layer=2, n_head=2, n_positions=WINDOW, bos_token_id=eos, eos_token_id=eos)
    )
    handle = smooth(model, Proposal.kneser_ney(Counts.from_ids(train, words), gamma=0.2))

    arguments = TrainingArguments(
        output_dir=options.out,
        max_steps=options.steps,
        learning_rate=3e-3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        save_strategy="no",
        report_to=[],
    )
    trainer = SmoothingTrainer(
        model, arguments, train_dataset=rows(train), eval_dataset=rows(valid[:8000]), handle=handle, kl_weight=1e-4 / WINDOW
    )
    trainer.train()
    print(f"perplexity of the mean: {math.exp(trainer.evaluate()['eval_loss']):.1f}")

    handle.fold()  # the saved model predicts with the mean, and needs no varsmooth
    model.save_pretrained(options.out)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"hf_trainer: {error}", file=sys.stderr)
        sys.exit(2)
