"""What every tokenizer offers."""

import abc
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from training.data.records import DataError, fingerprint
from training.data.special_tokens import SpecialTokens

FORMAT = "formal-algorithms tokenizer 1"
UNKNOWN = "<unk>"


class Tokenizer(abc.ABC):
    """What every tokenizer offers; see `training.data.tokenizers`."""

    N_V: int  # size of the vocabulary
    # the special tokens of the model that the tokenizer came with; None: the paper's
    special: SpecialTokens | None = None
    # its own IDs for mask, bos and eos, where it has them
    special_origins: tuple[int | None, int | None, int | None] = (None, None, None)
    unknown: int | None = None  # the token for text outside the vocabulary, if there is one
    # how a conversation is written for the model, if it can have one; see `training.data.chat`
    chat_template: str | None = None

    @property
    def mask_token(self) -> int:
        """The token that stands for a masked one, N_V-3."""
        return self.special.token("mask") if self.special else self.N_V - 3

    @property
    def bos_token(self) -> int:
        """The token at the beginning of every sequence, N_V-2."""
        return self.special.token("bos") if self.special else self.N_V - 2

    @property
    def eos_token(self) -> int:
        """The token at the end of every sequence, N_V-1."""
        return self.special.token("eos") if self.special else self.N_V - 1

    @property
    def end(self) -> int | None:
        """The token that ends a generated text: eos_token, or None if the model came without one."""
        return self.special.eos if self.special else self.eos_token

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """All tokens that end a generated text, `end` first."""
        ends = (self.end, *(self.special.ends if self.special else ()))
        return tuple(token for token in ends if token is not None)

    @property
    def special_tokens(self) -> tuple[int, ...]:
        """The tokens that never occur in text."""
        return self.special.all() if self.special else (self.mask_token, self.bos_token, self.eos_token)

    def framed(self, ids: Sequence[int], *, ends: bool = True) -> list[int]:
        """Return a text's token IDs as a model reads them: after bos, and where the text ends, before eos."""
        if self.special:
            return self.special.framed(ids, ends=ends)
        return [self.bos_token, *ids, *([self.eos_token] if ends else [])]

    def are_mostly_unknown(self, ids: Sequence[int]) -> bool:
        """Return whether more than half of the tokens stand for text outside the vocabulary."""
        return self.unknown is not None and 2 * list(ids).count(self.unknown) > len(ids)

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`, without bos and eos. Raises DataError if the text has something that the
        vocabulary lacks.
        """

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text; the tokenizers that can do so work in parallel."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token IDs, of special ones nothing. Raises DataError if an ID is outside [0, N_V)."""
        ordinary, special = [], set(self.special_tokens)
        for token in map(int, ids):
            if not 0 <= token < self.N_V:
                raise DataError(f"token ID {token} is outside the vocabulary of {self.N_V} tokens")
            if token not in special:
                ordinary.append(token)
        return self._decode(ordinary)

    @abc.abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Return the text of ordinary token IDs."""

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` needs: "kind" and the vocabulary."""

    def fingerprint(self) -> str:
        """Return a hash of everything that decides how text becomes tokens."""
        return fingerprint(json.dumps(self.to_json(), sort_keys=True))

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to one JSON file."""
        text = json.dumps({"format": FORMAT, **self.to_json()}, ensure_ascii=False, indent=1, sort_keys=True)
        Path(path).write_text(text + "\n", encoding="utf-8")
