"""Cross-validation: K equal parts of the data, each held out once."""

import dataclasses
import re
from typing import Any

from training.data.records import Corpus, DataError, fingerprint, hash64, record_key


def folded(corpus: Corpus[Any], fold: str) -> Corpus[Any]:
    """Split a corpus's training and validation data again, with the I-th of K parts held out for validation (`fold` is
    "I/K", from 1); the test data stay the same.

    A record's part depends on its text alone, so equal texts are in one part, and the parts are only roughly equal in
    size.

    Raises:
        DataError: there is no such part, or one part would be empty.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", fold)
    i, k = map(int, match.groups()) if match else (0, 0)
    if not (k >= 2 and 1 <= i <= k):
        raise DataError(f"--fold: expected I/K such as 1/5, the first of five parts, got {fold!r}")
    if corpus.files:
        raise DataError("--fold: expected data without weights, since folds mix all files; leave =WEIGHT out")
    records = [*corpus.train, *corpus.validation]
    parts = [hash64(f"fold {record_key(record)}") % k == i - 1 for record in records]
    held_out = [record for record, is_held_out in zip(records, parts, strict=True) if is_held_out]
    train = [record for record, is_held_out in zip(records, parts, strict=True) if not is_held_out]
    if not held_out or not train:
        raise DataError(f"--fold: expected fewer parts, got {k} of {len(records)} records, which leaves a part empty")
    own = fingerprint(corpus.fingerprint, fold)
    return dataclasses.replace(corpus, train=train, validation=held_out, held_out=0.0, fingerprint=own)
