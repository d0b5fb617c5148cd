"""From text to vocabularies, token streams and counts."""

from varsmooth.text.corpus import Corpus, open_corpus
from varsmooth.text.synthetic import MarkovSource
from varsmooth.text.vocab import EOS, UNK, Vocab

__all__ = ["EOS", "UNK", "Corpus", "MarkovSource", "Vocab", "open_corpus"]
