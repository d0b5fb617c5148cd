"""A vocabulary as a tokenizer that plain transformers loads, without varsmooth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from varsmooth.text.vocab import EOS, UNK, Vocab

WHITE_SPACE = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Ranges of the characters that ``str.split`` splits at."""


def tokenizer_of(vocab: Vocab) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose ids are those of ``vocab.encode(text.split())``.

    With ``add_special_tokens``, the default, ``<eos>`` comes first: the end of the line before, from which a model predicts the
    first word. Padding is ``<eos>`` on the left, told from the word by the attention mask. Where the vocabulary has no
    ``<unk>``, an unknown word is an error.
    """
    words = Tokenizer(models.WordLevel({word: row for row, word in enumerate(vocab.words)}, unk_token=UNK))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{WHITE_SPACE}]+"), "removed")
    words.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", pair=f"{EOS} $A $B", special_tokens=[(EOS, vocab.eos_id)]
    )
    unknown = {} if vocab.unk_id is None else {"unk_token": UNK}
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=EOS,
        eos_token=EOS,
        pad_token=EOS,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        # Otherwise a word that merely contains <eos> would be cut up.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **unknown,
    )


class RunTokenizer(PreTrainedTokenizerFast):
    """What AutoTokenizer takes for a run's folder as it is; an exported one holds a tokenizer of transformers' own."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> PreTrainedTokenizerFast:
        """Return the tokenizer of a run's vocabulary, or of an exported folder."""
        place = pretrained_model_name_or_path
        if isinstance(place, str | Path) and (Path(place) / "vocab.txt").is_file() and (Path(place) / "config.toml").is_file():
            return tokenizer_of(Vocab.load(Path(place) / "vocab.txt"))
        found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(place, *args, **options)
        return found
