"""Pairs and labeled texts as sequences that a decoder learns beside its text."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from training.data.records import Corpus, DataError, Labeled, Pair, fingerprint
from training.data.token_store import TokenStore
from training.data.tokenizers import Tokenizer

SEPARATOR = "\t"  # of a source and its target, for a decoder that learns pairs, too


def as_pairs(corpus: Corpus[Any]) -> Corpus[Pair]:
    """Return a corpus with every labeled text as a pair of the text and its label; pairs stay as they are."""

    def pair(record: Pair | Labeled) -> Pair:
        return Pair(record.text, record.label, record.where) if isinstance(record, Labeled) else record

    return dataclasses.replace(corpus, **{part: [*map(pair, records)] for part, records in corpus.parts().items()})


def task_store(records: Iterable[Pair], tokenizer: Tokenizer, *, part: str) -> TokenStore:
    """Return pairs, tokenized separately, as a store of sequences for a decoder: bos, source, TAB, target, eos. The
    loss is on target and eos, so `generate.py RUN --prompt "SOURCE<TAB>"` answers. Raises DataError for a source with a
    TAB.
    """
    sources, targets = [], []
    for record in records:
        if SEPARATOR in record.source:
            raise DataError(f"{record.where}: expected a source without TAB, which separates it from its target")
        sources.append(record.source + SEPARATOR)
        targets.append(record.target)
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    pairs = list(zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(targets), strict=True))
    tokens = np.array([token for a, b in pairs for token in (bos, *a, *b, eos)], np.int32)
    answers = np.array([answer for a, b in pairs for answer in (*[False] * (1 + len(a)), *[True] * (len(b) + 1))], bool)
    offsets = np.cumsum([0, *(len(a) + len(b) + 2 for a, b in pairs)], dtype=np.int64)
    own = fingerprint(tokenizer.N_V, tokens.tobytes(), offsets.tobytes())
    return TokenStore(tokens, offsets, tokenizer.N_V, 0, own, part, exact=False, answers=answers)
