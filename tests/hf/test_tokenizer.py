"""The tokenizer's ids are the vocabulary's, and plain transformers loads it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth import Vocab

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
hf = pytest.importorskip("varsmooth.hf")

WORDS = (
    "the",
    "<eos>",
    "<unk>",
    "cat",
    "a<eos>b",
    "\ufeff",
    "Cat",
    "caf\u00e9",
    "cafe\u0301",
    "'s",
    "##x",
    "N",
    "\u200b",
    "\U0001f600",
)
VOCAB, CLOSED = Vocab(WORDS), Vocab(("<eos>", "the", "cat"))
OPEN_TOKENIZER, CLOSED_TOKENIZER = hf.tokenizer_of(VOCAB), hf.tokenizer_of(CLOSED)
pieces = st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))
gaps = st.text(st.sampled_from([chr(code) for code in range(0x3001) if chr(code).isspace()]), max_size=2)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(pieces, gaps)))
def test_ids_are_those_of_the_vocabulary(parts):
    text = "".join(piece + gap for piece, gap in parts)
    ids = VOCAB.encode(text.split())
    assert OPEN_TOKENIZER(text, add_special_tokens=False)["input_ids"] == ids
    assert OPEN_TOKENIZER(text)["input_ids"] == [VOCAB.eos_id, *ids]
    assert OPEN_TOKENIZER.decode(ids) == " ".join(VOCAB.decode(ids))


def test_every_white_space_of_python_separates_words_and_nothing_else_does():
    letters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x10000), 0x1F600, 0xE0020)]
    found = OPEN_TOKENIZER([f"the{letter}the" for letter in letters], add_special_tokens=False)["input_ids"]
    wrong = [letter for letter, ids in zip(letters, found, strict=True) if (ids == [0, 0]) != letter.isspace()]
    assert not wrong


def test_a_closed_vocabulary_refuses_unknown_words():
    assert CLOSED_TOKENIZER.encode("the cat", add_special_tokens=False) == [1, 2]
    with pytest.raises(Exception, match=r"(?i)unk"):
        CLOSED_TOKENIZER.encode("the dog")
    assert len(CLOSED_TOKENIZER) == 3


def test_special_tokens():
    assert len(OPEN_TOKENIZER) == len(VOCAB)
    assert {OPEN_TOKENIZER.bos_token_id, OPEN_TOKENIZER.eos_token_id, OPEN_TOKENIZER.pad_token_id} == {VOCAB.eos_id}
    assert OPEN_TOKENIZER.unk_token_id == VOCAB.unk_id
    batch = OPEN_TOKENIZER(["the cat", "the"], padding=True)
    assert batch["input_ids"] == [[1, 0, 3], [1, 1, 0]]
    assert batch["attention_mask"] == [[1, 1, 1], [0, 1, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert OPEN_TOKENIZER.decode([1, 0, 3, 1], skip_special_tokens=True) == "the cat"


def test_it_loads_without_varsmooth(tmp_path):
    text = "the  Cat\tdog <eos> a<eos>b a<eos> N cafe\u0301 \u200b 's"
    OPEN_TOKENIZER.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "varsmooth"}')
    program = f"""
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(tmp_path)!r})
assert "varsmooth" not in sys.modules
print(tokenizer({text!r})["input_ids"], tokenizer.padding_side, tokenizer.model_input_names)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == f"{[1, *VOCAB.encode(text.split())]} left ['input_ids', 'attention_mask']"
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == [1, *VOCAB.encode(text.split())]
