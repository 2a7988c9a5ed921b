"""Tasks that a decoder learns in addition to text: pairs and labeled texts, as source, separator and target.

A pair becomes bos, source, TAB, target, eos; the target of a labeled text is its label. The loss is on the target and
eos. So `generate.py RUN --prompt "SOURCE<TAB>"` answers, and `--shots` uses the same form.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from training.data.records import Corpus, DataError, Labeled, Pair, fingerprint
from training.data.store import TokenStore
from training.data.tokenizer import Tokenizer

SEPARATOR = "\t"


def as_pairs(corpus: Corpus[Any]) -> Corpus[Pair]:
    """Return a corpus with every labeled text as a pair of the text and its label; pairs stay as they are."""

    def pair(record: Pair | Labeled) -> Pair:
        return Pair(record.text, record.label, record.where) if isinstance(record, Labeled) else record

    return dataclasses.replace(corpus, **{part: [*map(pair, records)] for part, records in corpus.parts().items()})


def task_store(records: Iterable[Pair], tokenizer: Tokenizer, *, part: str) -> TokenStore:
    """Return pairs, tokenized separately, as a store of sequences whose targets are predicted. Raises DataError."""
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
