"""From a run of the command line to text.

varsmooth train --data python --recipe element-kneser-ney --out runs/kn
python examples/run_to_text.py runs/kn "return the"
"""

from __future__ import annotations

import argparse

from varsmooth import LanguageModel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("prompt")
    parser.add_argument("--words", type=int, default=20)
    options = parser.parse_args()

    model = LanguageModel.load(options.run)
    (scored,) = model.score([options.prompt])
    print(f"perplexity of the prompt: {scored.perplexity:.1f}")
    for seed in range(3):
        print(model.generate(options.prompt, options.words, temperature=0.8, top_k=40, seed=seed))


if __name__ == "__main__":
    main()
