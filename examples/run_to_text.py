"""From a run of the command line to text with transformers: export, load with the Auto classes, score, generate.

pip install 'varsmooth[hf]'
varsmooth train --data python --recipe element-kneser-ney/small --out runs/kn
python examples/run_to_text.py runs/kn "return the" --to kn-model
"""

from __future__ import annotations

import argparse
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

import varsmooth.hf  # registers the model with the Auto classes
from varsmooth import InputError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("prompt")
    parser.add_argument("--to", required=True, help="the folder to export to")
    parser.add_argument("--words", type=int, default=20)
    options = parser.parse_args()

    # As the command line does: varsmooth export RUN --to hf FOLDER
    exported = varsmooth.hf.export(options.run, options.to, force=True)
    tokenizer = AutoTokenizer.from_pretrained(exported.folder)
    model = AutoModelForCausalLM.from_pretrained(exported.folder)

    # The tokenizer puts <eos> first; the end of the line is a word like any other, to be written where it counts.
    line = tokenizer(f"{options.prompt} <eos>", return_tensors="pt")
    with torch.no_grad():
        loss = model(**line, labels=line["input_ids"]).loss
    print(f"perplexity of the prompt: {loss.exp():.1f}")

    set_seed(1)
    prompt = tokenizer(options.prompt, return_tensors="pt")
    sampling = {"do_sample": True, "temperature": 0.8, "top_k": 40, "num_return_sequences": 3}
    for ids in model.generate(**prompt, **sampling, max_new_tokens=options.words):
        print(tokenizer.decode(ids, skip_special_tokens=True))
    (best,) = model.generate(**prompt, num_beams=4, max_new_tokens=options.words)
    print(f"by beam search: {tokenizer.decode(best, skip_special_tokens=True)}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"run_to_text: {error}", file=sys.stderr)
        sys.exit(2)
