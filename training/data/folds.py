"""The parts of cross-validation: each is held out once."""

import dataclasses
import re
from typing import Any

from training.data.records import Corpus, DataError, fingerprint, hash64, record_key


def folded(corpus: Corpus[Any], fold: str) -> Corpus[Any]:
    """Hold out the I-th of K parts of a corpus's training and validation data for validation (`fold` is "I/K", from 1).
    Equal texts are in one part, so parts are only roughly equal. Raises DataError if one is empty, or there is none.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", fold)
    i, k = map(int, match.groups()) if match else (0, 0)
    if not (k >= 2 and 1 <= i <= k):
        raise DataError(f"--fold: expected I/K such as 1/5, the first of five parts, got {fold!r}")
    if corpus.files:
        raise DataError("--fold: expected data without weights, since folds mix all files; leave =WEIGHT out")
    records = [*corpus.train, *corpus.validation]
    parts: tuple[list[Any], list[Any]] = ([], [])
    for record in records:
        parts[hash64(f"fold {record_key(record)}") % k == i - 1].append(record)
    train, held_out = parts
    if not held_out or not train:
        raise DataError(f"--fold: expected fewer parts, got {k} of {len(records)} records, which leaves a part empty")
    own = fingerprint(corpus.fingerprint, fold)
    return dataclasses.replace(corpus, train=train, validation=held_out, held_out=0.0, fingerprint=own)
