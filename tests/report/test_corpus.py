from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
from rich.console import Console

from varsmooth.errors import InputError
from varsmooth.report.corpus import corpus_statistics, statistics_tables
from varsmooth.report.corpus_plot import corpus_picture, write_corpus_picture
from varsmooth.report.plots import MissingPlotError
from varsmooth.text import Corpus, MarkovSource, Vocab
from varsmooth.text.synthetic import synthetic_corpus

TEXTS = {"train": "the cat sat\non the mat\n", "valid": "the mat sat\n", "test": "on the cat\n"}
PNG = b"\x89PNG\r\n\x1a\n"


def small(**options: int) -> Corpus:
    return Corpus.from_texts(TEXTS, name="small", **options)


def printed(corpus: Corpus) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        for table in statistics_tables(corpus_statistics(corpus)):
            console.print(table)
    return capture.get()


def test_a_corpus_counted_by_hand() -> None:
    found = corpus_statistics(small(), gamma=0.2)
    assert (found.data, found.vocab_size, found.types, found.least_count) == ("small", 6, 6, 2)
    assert found.type_token_ratio == 6 / 8
    assert {name: (split.tokens, split.lines) for name, split in found.splits.items()} == {
        "train": (8, 2),
        "valid": (4, 1),
        "test": (4, 1),
    }
    assert found.mean_rate == pytest.approx((4 * 0.2 + 0.2 + 0.1) / 6)
    assert found.token_rate == pytest.approx((4 * 0.2 + 2 * 0.2 + 2 * 0.1) / 8)


def test_bands_counted_by_hand() -> None:
    once, few, *rest = corpus_statistics(small(), gamma=0.2).bands
    assert (once.label, once.words, few.label, few.words) == ("1", 4, "2-5", 2)
    assert (once.mean_rate, few.mean_rate) == pytest.approx((0.2, 0.15))
    assert (once.unigram_mass, few.unigram_mass) == pytest.approx((4 / 8, 4 / 8))
    assert (once.kneser_ney_mass, few.kneser_ney_mass) == pytest.approx((4 / 7, 3 / 7))
    assert [band.label for band in rest] == ["6-20", "21-100", "101-1,000", ">1,000"]
    assert all((band.words, band.mean_rate, band.unigram_mass) == (0, None, 0) for band in rest)


def test_the_edges_of_bands() -> None:
    sizes = {
        "one": 1,
        "two": 2,
        "five": 5,
        "six": 6,
        "twenty": 20,
        "more": 21,
        "hundred": 100,
        "then": 101,
        "k": 1000,
        "kk": 1001,
    }
    line = " ".join(word for word, count in sizes.items() for _ in range(count))
    found = corpus_statistics(Corpus.from_texts({"train": line, "valid": line, "test": line}))
    assert [band.words for band in found.bands] == [2, 2, 2, 2, 2, 1]  # <eos> occurs once too
    assert sum(band.unigram_mass for band in found.bands) == pytest.approx(1)
    assert sum(band.kneser_ney_mass for band in found.bands) == pytest.approx(1)


def test_moved_words_counted_by_hand() -> None:
    found = corpus_statistics(small())
    (raised,), (lowered,) = found.raised, found.lowered
    assert (raised.word, raised.count, raised.distinct_before) == ("<eos>", 2, 2)
    assert (lowered.word, lowered.count, lowered.distinct_before) == ("the", 2, 1)
    assert (raised.unigram, raised.kneser_ney, raised.ratio) == pytest.approx((2 / 8, 2 / 7, 8 / 7))
    assert (lowered.unigram, lowered.kneser_ney, lowered.ratio) == pytest.approx((2 / 8, 1 / 7, 4 / 7))


def test_a_word_that_follows_one_other_word_only_is_found() -> None:
    names = [f"w{number}" for number in range(40)]
    places = "".join(f"{name} san francisco\n{name} {other}\n" for name, other in zip(names, names[::-1], strict=True))
    found = corpus_statistics(Corpus.from_texts({"train": places, "valid": places, "test": places}), least_count=3)
    assert found.lowered[0].word == "francisco"
    assert (found.lowered[0].count, found.lowered[0].distinct_before) == (40, 1)


def test_large_corpora_list_frequent_words_the_most_moved_first() -> None:
    corpus = synthetic_corpus(MarkovSource(vocab_size=300), train=100_000)
    found = corpus_statistics(corpus)
    assert found.least_count == len(corpus.train) // 5_000 == 19
    assert (len(found.raised), len(found.lowered)) == (10, 10)
    assert min(item.count for item in (*found.raised, *found.lowered)) >= 19
    raised, lowered = ([item.ratio for item in words] for words in (found.raised, found.lowered))
    assert raised == sorted(raised, reverse=True)
    assert lowered == sorted(lowered)
    assert lowered[-1] < 1 < raised[-1] < raised[0]


def test_the_share_of_unknown_words() -> None:
    splits = corpus_statistics(small(min_count=2)).splits
    assert {name: split.unknown_share for name, split in splits.items()} == {"train": 4 / 8, "valid": 2 / 4, "test": 2 / 4}
    assert corpus_statistics(small()).splits["valid"].unknown_share == 0


def test_words_that_never_occur_count_for_nothing() -> None:
    vocab = Vocab(("never", "<eos>", "the", "cat", "sat", "on", "mat"))
    found = corpus_statistics(Corpus.from_texts(TEXTS, vocab=vocab))
    assert (found.vocab_size, found.types) == (7, 6)
    assert found.mean_rate == pytest.approx(1.1 / 6)
    assert sum(band.words for band in found.bands) == 6
    assert found.splits["train"].lines == 2


def test_rates_grow_with_gamma() -> None:
    none, some, all_ = (corpus_statistics(small(), gamma=gamma) for gamma in (0.0, 0.5, 1.0))
    assert none.token_rate == 0
    assert all_.token_rate == pytest.approx(2 * some.token_rate)
    with pytest.raises(InputError, match="gamma must be in"):
        corpus_statistics(small(), gamma=1.5)


def test_json_holds_everything_but_tensors() -> None:
    found = corpus_statistics(small())
    plain = json.loads(json.dumps(found.as_json()))
    assert set(plain) == set(vars(found)) - {"masses"}
    assert plain["splits"]["train"] == {"tokens": 8, "lines": 2, "unknown_share": 0.0}
    assert plain["bands"][0]["words"] == 4
    assert plain["raised"][0]["word"] == "<eos>"


def test_tables_show_the_figures() -> None:
    shown = printed(small())
    assert "6 words in the vocabulary" in shown
    assert [line.split() for line in shown.splitlines() if line.split()[:1] == ["2-5"]] == [
        ["2-5", "2", "0.1500", "50.00%", "42.86%"]
    ]
    assert ["the", "2", "1", "250,000.0", "142,857.1", "0.571"] in [line.split() for line in shown.splitlines()]


def test_no_word_is_taken_for_markup_or_a_command_to_the_terminal() -> None:
    texts = dict.fromkeys(TEXTS, "[bold]x[/] a\n[bold]x[/] b\n\x1b[31m c\n\x1b[31m d\n")
    shown = printed(Corpus.from_texts(texts))
    assert "[bold]x[/]" in shown
    assert "\x1b[31m" not in shown
    assert "\N{REPLACEMENT CHARACTER}[31m" in shown


def test_the_picture_is_a_png_and_shows_the_figures() -> None:
    picture = corpus_picture(corpus_statistics(small()))
    assert picture.startswith(PNG)
    assert struct.unpack(">II", picture[16:24]) == (1760, 800)
    assert picture == corpus_picture(corpus_statistics(small()))
    assert picture != corpus_picture(corpus_statistics(small(), gamma=0.3))


def test_any_word_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    texts = dict.fromkeys(TEXTS, "$\\nonsense{$ 日本語\n日本語 \x07\x07\n$\\nonsense{$ 日本語\n")
    assert corpus_picture(corpus_statistics(Corpus.from_texts(texts, name="日本語 $x$"))).startswith(PNG)


def test_where_the_picture_goes(tmp_path: Path) -> None:
    found = corpus_statistics(small())
    write_corpus_picture(tmp_path / "new" / "picture.png", found)
    assert (tmp_path / "new" / "picture.png").read_bytes() == corpus_picture(found)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match=r"file/picture\.png: cannot be written"):
        write_corpus_picture(tmp_path / "file" / "picture.png", found)


def test_without_matplotlib_the_command_that_helps_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPlotError, match=r"varsmooth\[plot\]"):
        corpus_picture(corpus_statistics(small()))
