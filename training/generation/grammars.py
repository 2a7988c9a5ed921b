"""Texts that follow a grammar, token by token, by the library `llguidance`: JSON by a schema, and calls of tools."""

import functools
import importlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from training.data.tokenizers import Tokenizer
from training.extras import install

WHITESPACE = r"(\n {0,20}| ?)"  # between the parts of JSON; with any amount, a text might never end


class Grammar:
    """The tokens that may come next in one text that follows a grammar, which is read as it grows."""

    def __init__(self, matcher: Any, N_V: int, ends: Collection[int]) -> None:
        """Begin a text, which the tokens `ends` may end where it is whole."""
        self._matcher, self._N_V, self._ends = matcher, N_V, frozenset(ends)
        self._n, self._is_ended = 0, False  # tokens read, and whether an end was among them
        self.problem = ""  # why no token may follow, although the text is not whole
        self._permitted = self._next()

    def copy(self) -> "Grammar":
        """Return the same for another text, if none has been read yet."""
        return Grammar(self._matcher.deep_copy(), self._N_V, self._ends)

    def permits(self, tokens: Sequence[int] | np.ndarray) -> Bool[np.ndarray, "N_V"]:
        """Return which tokens may follow all of a text's so far; any if nothing may, or can."""
        self._read(tokens)
        return self._permitted

    def is_whole(self, tokens: Sequence[int] | np.ndarray) -> bool:
        """Whether the text is complete, so that only an end may follow."""
        self._read(tokens)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _read(self, tokens: Sequence[int] | np.ndarray) -> None:
        new, self._n = tokens[self._n :], max(self._n, len(tokens))
        for token in map(int, new):
            self._is_ended |= token in self._ends
            if not self._is_ended:
                self._matcher.consume_token(token)
        if len(new):
            self._permitted = self._next()

    def _next(self) -> Bool[np.ndarray, "N_V"]:
        matcher, every = self._matcher, np.ones(self._N_V, bool)
        if self._is_ended:
            return every
        permitted = ~every
        if not matcher.is_stopped():
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            permitted = bits[: self._N_V].astype(bool)
        if matcher.is_error():
            self.problem = next(filter(str.strip, matcher.get_error().splitlines()), "the grammar has no text")
        elif matcher.is_accepting():
            permitted[[*self._ends]] = True
        elif not permitted.any():
            self.problem = "the vocabulary has no token to continue with"
        return permitted if permitted.any() else every


class Grammars:
    """The grammars of texts that a tokenizer writes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, rules: str, ends: Iterable[int]) -> Grammar:
        """Return the grammar of these rules, in llguidance's Lark, whose texts `ends` may end. Raises ValueError."""
        matcher = _library().LLMatcher(self._vocabulary, _library().LLMatcher.grammar_from_lark(rules), log_level=0)
        grammar = Grammar(matcher, self._tokenizer.N_V, tuple(ends))
        if grammar.problem:
            known = "expected a form that llguidance knows and the vocabulary can write"
            raise ValueError(f"{known}, got {grammar.problem}; simplify it")
        return grammar

    def literal(self, text: str) -> str:
        """Return the rule of a text, in which the names of special tokens stand for these."""
        for token in self._tokenizer.special_tokens:
            before, name, after = text.partition(self._tokenizer.name(token))
            if name:
                return f"{self.literal(before)} <[{token}]> {self.literal(after)}".strip()
        return json.dumps(text, ensure_ascii=False) if text else ""

    @functools.cached_property
    def _vocabulary(self) -> Any:
        return _library().LLTokenizer(_Vocabulary(self._tokenizer))


class _Vocabulary:
    """A tokenizer as llguidance reads it, with a token that ends all texts, and the bytes that no token spells."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, special = tokenizer.N_V, set(tokenizer.special_tokens)
        spelled = [*map(tokenizer.spelled, range(tokenizer.N_V)), b"<end>"]
        ids = {token: i for i, token in enumerate(spelled[:-1]) if i not in special}
        self.tokens = spelled + [byte for byte in map(int.to_bytes, range(256)) if byte not in ids]
        self.special_token_ids = [*special, self.eos_token_id]
        self._ids = {token: i for i, token in enumerate(self.tokens) if i not in self.special_token_ids}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text, the longest first; llguidance asks for those of what leaves no choice."""
        rest, found = text.encode() if isinstance(text, str) else text, []
        while rest:
            lengths = range(min(len(rest), self._longest), 0, -1)
            token = next(rest[:n] for n in lengths if rest[:n] in self._ids)
            found.append(self._ids[token])
            rest = rest[len(token) :]
        return found


def of_json(schema: dict[str, Any]) -> str:
    """Return the rule of JSON that has a schema."""
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': WHITESPACE}})}"


def _library() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError:
        raise ValueError(f"answers by a schema need llguidance: {install('serve')}") from None
