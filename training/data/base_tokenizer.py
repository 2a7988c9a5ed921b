"""The interface of all tokenizers."""

import abc
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from training.data.records import DataError, fingerprint
from training.data.special_tokens import SpecialTokens

FORMAT = "formal-algorithms tokenizer 1"
REPLACEMENT = "\ufffd"  # what a part of a character decodes to
CONTEXT = 8  # last tokens before others that may decide their text: more than a character or a stripped space has
UNKNOWN = "<unk>"


class Tokenizer(abc.ABC):
    """The interface of all tokenizers; see `training.data.tokenizers`."""

    N_V: int  # size of the vocabulary
    special: SpecialTokens | None = None  # those of the model that the tokenizer came with; None: the paper's
    unknown: int | None = None  # the token for text outside the vocabulary, if there is one
    chat_template: str | None = None  # see `training.data.chat`; None: the model was not trained to converse

    @property
    def _special(self) -> SpecialTokens:
        """The special tokens of the model, or the paper's."""
        mask, bos, eos = range(self.N_V - 3, self.N_V)
        return self.special or SpecialTokens(self.N_V, mask, bos, eos, before=(bos,), after=(eos,))

    @property
    def mask_token(self) -> int:
        """The token that replaces masked tokens, N_V-3."""
        return self._special.token("mask")

    @property
    def bos_token(self) -> int:
        """The token at the beginning of every sequence, N_V-2."""
        return self._special.token("bos")

    @property
    def eos_token(self) -> int:
        """The token at the end of every sequence, N_V-1."""
        return self._special.token("eos")

    @property
    def end(self) -> int | None:
        """The token that ends a generated text: eos_token, or None if the model has none."""
        return self._special.eos

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """All tokens that end a generated text, `end` first."""
        return tuple(token for token in (self.end, *self._special.ends) if token is not None)

    @functools.cached_property
    def special_tokens(self) -> tuple[int, ...]:
        """The tokens that never occur in text."""
        return self._special.all()

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens)

    def is_special(self, token: int) -> bool:
        """Return whether a token never occurs in text."""
        return token in self._special_ids

    def framed(self, ids: Sequence[int], *, ends: bool = True) -> list[int]:
        """Return a text's token IDs as a model reads them: after bos (at least), and before eos if it `ends`."""
        special = self._special
        return [*special.before, *ids, *(special.after if ends else ())] or [special.token("bos")]

    def are_mostly_unknown(self, ids: Sequence[int]) -> bool:
        """Return whether more than half of the tokens stand for text outside the vocabulary."""
        return self.unknown is not None and 2 * list(ids).count(self.unknown) > len(ids)

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`, without bos and eos. Raises DataError if the vocabulary cannot express it."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text, computed in parallel if the tokenizer can."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token IDs, skipping special ones. Raises DataError if an ID is outside [0, N_V)."""
        ordinary = []
        for token in map(int, ids):
            if not 0 <= token < self.N_V:
                raise DataError(f"token ID {token} is outside the vocabulary of {self.N_V} tokens")
            if not self.is_special(token):
                ordinary.append(token)
        return self._decode(ordinary)

    def continued(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text that token IDs add to those `before` them; it may be another where a text begins."""
        context = self.context(before)
        known, whole = self.complete(context), self.decode([*context, *ids])
        return whole[len(known) :] if whole.startswith(known) else self.decode(ids)

    def context(self, before: Sequence[int]) -> list[int]:
        """Return the last tokens before others that may decide their text."""
        context = list[int]()
        for token in reversed(before[-CONTEXT:]):
            if self.is_special(token):
                break
            context.insert(0, int(token))
        return context

    def complete(self, ids: Sequence[int]) -> str:
        """Return the text of token IDs without the part of a character that they may end in."""
        ends = range(len(ids), max(-1, len(ids) - 4), -1)  # a character has at most four bytes
        texts = (self.decode(ids[:end]) for end in ends)
        return next((text for text in texts if not text.endswith(REPLACEMENT)), self.decode(ids))

    def special_token(self, text: str) -> int | None:
        """Return the special token of this name, if there is one."""
        return next((token for token in self.special_tokens if self.name(token) == text), None)

    def encode_markup(self, text: str) -> list[int]:
        """Return the tokens of a text in which their names stand for special tokens."""
        return self.encode(text)

    def name(self, token: int) -> str:
        """Return the name of a special token."""
        names = {self._special.mask: "[MASK]", self._special.bos: "[BOS]", self._special.eos: "[EOS]"}
        return names.get(token, f"[{token}]")

    def spelled(self, token: int) -> bytes:
        """Return the bytes that a token stands for within a text; those of its name if it is special."""
        if self.is_special(token):
            return self.name(token).encode()
        return self._spelled(token)

    def _spelled(self, token: int) -> bytes:
        return self.continued(self.anchor, [token]).encode()

    @functools.cached_property
    def anchor(self) -> list[int]:
        """An ordinary token, after which a text does not begin; none if there is none."""
        return next(([v] for v in range(self.N_V) if not self.is_special(v) and self.decode([v]).isalpha()), [])

    @abc.abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Return the text of ordinary token IDs."""

    def may_change(self, token: int) -> bool:
        """Return whether the next tokens may change the text of this one, apart from U+FFFD for part of a character."""
        return False

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return a description for `from_json`: "kind", and everything to rebuild the tokenizer from."""

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the tokens of a text."""
        return fingerprint(json.dumps(self.to_json(), sort_keys=True))

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file, for `load_tokenizer`."""
        text = json.dumps({"format": FORMAT, **self.to_json()}, ensure_ascii=False, indent=1, sort_keys=True)
        Path(path).write_text(text + "\n", encoding="utf-8")
