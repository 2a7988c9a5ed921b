"""Named data sets: see `named`."""

from training.data.corpora.named import SOURCES, load_corpus

__all__ = ["SOURCES", "load_corpus"]
