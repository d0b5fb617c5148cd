"""What a corpus looks like to the proposals: sizes, rates by frequency band, and where Kneser-Ney parts from the unigram."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from varsmooth.proposal import Proposal
from varsmooth.report.runs import printable
from varsmooth.text import Corpus, Vocab
from varsmooth.text.counts import Counts

BANDS: tuple[tuple[int, int | None], ...] = ((1, 1), (2, 5), (6, 20), (21, 100), (101, 1000), (1001, None))
LISTED = 10
"""Words shown in each direction."""


@dataclass(frozen=True)
class SplitSize:
    """One split; every line ends in an ``<eos>``, which is counted among the tokens."""

    tokens: int
    lines: int
    unknown_share: float
    """Share of the tokens that are ``<unk>``."""


@dataclass(frozen=True)
class Band:
    """The words that occur ``lowest`` to ``highest`` times in train; ``highest`` None means no limit."""

    lowest: int
    highest: int | None
    words: int
    mean_rate: float | None
    """Mean Kneser-Ney rate over the words, or None where there are none."""
    unigram_mass: float
    """Their share of the unigram distribution, which is their share of train's tokens."""
    kneser_ney_mass: float

    @property
    def label(self) -> str:
        if self.highest is None:
            return f">{self.lowest - 1:,}"
        return f"{self.lowest:,}" if self.highest == self.lowest else f"{self.lowest:,}-{self.highest:,}"


@dataclass(frozen=True)
class WordMass:
    """One word and its probability under both distributions; ``ratio`` is Kneser-Ney over unigram."""

    word: str
    count: int
    distinct_before: int
    unigram: float
    kneser_ney: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Masses:
    """Of every word of the vocabulary: how often it occurs, its rate and its two probabilities (tensors of length V)."""

    counts: Counts
    rate: Tensor
    unigram: Tensor
    kneser_ney: Tensor


@dataclass(frozen=True, eq=False)
class CorpusStatistics:
    """Figures on a corpus; counts, rates and masses are those of train."""

    data: str
    gamma: float
    vocab_size: int
    types: int
    """Words of the vocabulary that occur in train."""
    type_token_ratio: float
    splits: dict[str, SplitSize]
    mean_rate: float
    """Mean Kneser-Ney rate over the words that occur."""
    token_rate: float
    """The same over tokens: the share of the text that is replaced."""
    bands: tuple[Band, ...]
    least_count: int
    """How often a word must occur to be listed in ``raised`` or ``lowered``."""
    raised: tuple[WordMass, ...]
    """Words with more Kneser-Ney than unigram mass, the largest ratio first."""
    lowered: tuple[WordMass, ...]
    """Words with less, the smallest ratio first: frequent, but only after a few other words."""
    masses: Masses = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the tensors as plain values."""
        plain = {name: value for name, value in vars(self).items() if name != "masses"}
        plain["splits"] = {name: asdict(split) for name, split in self.splits.items()}
        return plain | {name: [asdict(item) for item in plain[name]] for name in ("bands", "raised", "lowered")}


def corpus_statistics(corpus: Corpus, gamma: float = 0.2, *, least_count: int | None = None) -> CorpusStatistics:
    """Count ``corpus``; ``least_count`` keeps chance out of the lists of words, and grows with the corpus from 2 to 50."""
    counts = Counts.from_ids(corpus.train, len(corpus.vocab))
    noise = Proposal.kneser_ney(counts, gamma)
    unigram = Proposal.linear_interpolation(counts, gamma).probs.double()
    masses = Masses(counts, noise.rate.double(), unigram, noise.probs.double())
    tokens, types = corpus.train.numel(), int((counts.unigram > 0).sum())
    least = least_count if least_count is not None else max(2, min(50, tokens // 5_000))
    raised, lowered = _most_moved(masses, corpus.vocab, least)
    return CorpusStatistics(
        data=corpus.name,
        gamma=gamma,
        vocab_size=len(corpus.vocab),
        types=types,
        type_token_ratio=types / tokens,
        splits={name: _split_size(getattr(corpus, name), corpus.vocab) for name in ("train", "valid", "test")},
        mean_rate=float(masses.rate.sum()) / types,
        token_rate=float(masses.rate @ unigram),
        bands=tuple(_band(masses, lowest, highest) for lowest, highest in BANDS),
        least_count=least,
        raised=raised,
        lowered=lowered,
        masses=masses,
    )


def statistics_tables(statistics: CorpusStatistics) -> list[Group]:
    """Return the figures as tables for a terminal."""
    return [_split_table(statistics), _band_table(statistics), *_word_tables(statistics)]


def _split_size(ids: Tensor, vocab: Vocab) -> SplitSize:
    unknown = 0 if vocab.unk_id is None else int((ids == vocab.unk_id).sum())
    return SplitSize(ids.numel(), int((ids == vocab.eos_id).sum()), unknown / ids.numel())


def _band(masses: Masses, lowest: int, highest: int | None) -> Band:
    counts = masses.counts.unigram
    inside = counts >= lowest
    if highest is not None:
        inside &= counts <= highest
    rates = masses.rate[inside]
    return Band(
        lowest=lowest,
        highest=highest,
        words=rates.numel(),
        mean_rate=float(rates.mean()) if rates.numel() else None,
        unigram_mass=float(masses.unigram[inside].sum()),
        kneser_ney_mass=float(masses.kneser_ney[inside].sum()),
    )


def _most_moved(masses: Masses, vocab: Vocab, least: int) -> tuple[tuple[WordMass, ...], tuple[WordMass, ...]]:
    """Return the words whose mass Kneser-Ney raises and lowers most; of equals, the more frequent come first."""
    rows = torch.nonzero(masses.counts.unigram >= least).flatten().tolist()
    words = [_word_mass(masses, vocab, row) for row in rows]
    raised = sorted((word for word in words if word.ratio > 1), key=lambda word: (-word.ratio, -word.count, word.word))
    lowered = sorted((word for word in words if word.ratio < 1), key=lambda word: (word.ratio, -word.count, word.word))
    return tuple(raised[:LISTED]), tuple(lowered[:LISTED])


def _word_mass(masses: Masses, vocab: Vocab, row: int) -> WordMass:
    unigram, kneser_ney = float(masses.unigram[row]), float(masses.kneser_ney[row])
    count, distinct_before = int(masses.counts.unigram[row]), int(masses.counts.distinct_before[row])
    return WordMass(vocab.words[row], count, distinct_before, unigram, kneser_ney, kneser_ney / unigram)


def _split_table(statistics: CorpusStatistics) -> Group:
    caption = (
        f"{statistics.vocab_size:,} words in the vocabulary, {statistics.types:,} of them in train; "
        f"{statistics.type_token_ratio:.4f} types per token."
    )
    rows = (
        (name, f"{split.tokens:,}", f"{split.lines:,}", f"{split.unknown_share:.2%}")
        for name, split in statistics.splits.items()
    )
    title = f"{printable(statistics.data)}: size"
    return _table(title, caption, ("split", "tokens", "lines", "<unk>"), rows)


def _band_table(statistics: CorpusStatistics) -> Group:
    caption = (
        f"Kneser-Ney smoothing with gamma {statistics.gamma:g} replaces a word at a rate of {statistics.mean_rate:.3f} "
        f"on average, and {statistics.token_rate:.2%} of the text. The unigram mass of a band is its share of the text."
    )
    rows = (
        (
            band.label,
            f"{band.words:,}",
            "-" if band.mean_rate is None else f"{band.mean_rate:.4f}",
            f"{band.unigram_mass:.2%}",
            f"{band.kneser_ney_mass:.2%}",
        )
        for band in statistics.bands
    )
    headers = ("occurrences", "words", "mean rate", "unigram mass", "Kneser-Ney mass")
    return _table("Rates by frequency", caption, headers, rows)


def _word_tables(statistics: CorpusStatistics) -> list[Group]:
    often = f"among words that occur at least {statistics.least_count} times; masses per million"
    headers = ("word", "occurrences", "words before it", "unigram", "Kneser-Ney", "ratio")
    shown = [
        ("Words that Kneser-Ney proposes less often than the unigram", "They follow few words", statistics.lowered),
        ("Words that Kneser-Ney proposes more often than the unigram", "They follow many words", statistics.raised),
    ]
    return [
        _table(title, f"{reason} for their frequency; {often}.", headers, map(_word_cells, words))
        for title, reason, words in shown
        if words
    ]


def _word_cells(item: WordMass) -> tuple[str, ...]:
    figures = (f"{1e6 * item.unigram:,.1f}", f"{1e6 * item.kneser_ney:,.1f}", f"{item.ratio:.3f}")
    return printable(item.word), f"{item.count:,}", f"{item.distinct_before:,}", *figures


def _table(title: str, caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    """Return a table whose first column is text and whose others are figures; no cell is read as markup."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return Group(Text(title, style="bold"), table, Text(caption, style="dim"), "")
