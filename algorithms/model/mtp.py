"""The record of a head for the token after the next: multi-token prediction (MTP)."""

import dataclasses

from algorithms.machinery.record import Positive, Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class MTP(Record):
    """A head of Algorithm 10 that predicts x[t + 2] from column t of line 10 and x[t + 1]; see `algorithms.mtp`.

    Attributes:
        weight: λ, the weight of its loss in training.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §2.2.
    """

    weight: Positive = 0.3
