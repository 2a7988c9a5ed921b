"""Tasks that one decoder learns beside text: pairs and labels as source, separator and target.

A pair is bos, its source, a TAB, its target, eos; a labeled text has the label as its target. The loss is on the target
and eos. So `generate.py RUN --prompt "SOURCE<TAB>"` answers, and `--shots` has the same form.
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
    """Return labeled texts as pairs of a text and its label; pairs stay."""
    parts = {part: [_pair(record) for record in records] for part, records in corpus.parts().items()}
    return dataclasses.replace(corpus, **parts)


def _pair(record: Pair | Labeled) -> Pair:
    return Pair(record.text, record.label, record.where) if isinstance(record, Labeled) else record


def task_store(records: Iterable[Pair], tokenizer: Tokenizer, *, part: str) -> TokenStore:
    """Return a part's pairs as sequences for a decoder, in memory, that is to predict the targets; each side is
    tokenized by itself. Raises DataError if a source has a TAB, or a text has something that the tokenizer does not
    know.
    """
    sources, targets = [], []
    for record in records:
        if SEPARATOR in record.source:
            raise DataError(f"{record.where}: expected a source without TAB, which separates it from its target")
        sources.append(record.source + SEPARATOR)
        targets.append(record.target)
    read, predicted = tokenizer.encode_batch(sources), tokenizer.encode_batch(targets)
    lengths = np.array([len(a) + len(b) + 2 for a, b in zip(read, predicted, strict=True)])
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    pairs = list(zip(read, predicted, strict=True))
    tokens = np.array([token for a, b in pairs for token in (bos, *a, *b, eos)], np.int32)
    answers = np.array([answer for a, b in pairs for answer in (*[False] * (1 + len(a)), *[True] * (len(b) + 1))], bool)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    own = fingerprint(tokenizer.N_V, tokens.tobytes(), offsets.tobytes())
    return TokenStore(tokens, offsets, tokenizer.N_V, 0, own, part, exact=False, answers=answers)
