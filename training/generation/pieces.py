"""Text streamed token by token: the part that no later token can change, up to the first stop string."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from training.data.base_tokenizer import CONTEXT, REPLACEMENT, Tokenizer


class Pieces:
    """The text of one sequence; a token costs the same however long it is."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        given: int = 0,
        before: Sequence[int] = (),
        named: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Begin a text that ends before a stop, without the ``given`` characters of the prompt, with `named` tokens."""
        self._named = named
        self._tokenizer, self._stops, self._given, self._before = tokenizer, stops, given, before
        self._window = _Window(tokenizer, before)
        self._held = ""  # certain, but it may become a stop
        self.tokens: list[int] = []
        self.stopped = False  # whether the text contains a stop; everything from it on is dropped

    def add(self, token: int) -> str:
        """Add a token, and return the text that has become certain."""
        self.tokens.append(token)
        new = self._named.get(token) or self._window.add(token)
        left_out = min(self._given, len(new))
        self._given -= left_out
        self._held += new[left_out:]
        text, self.stopped = before(self._all_held(), self._stops)
        return self._taken(text if self.stopped else certain(self._held, self._stops))

    def rest(self) -> str:
        """Return the remaining text, after the last token."""
        return self._taken(before(self._all_held(), self._stops)[0])

    def all(self, tokens: Sequence[int]) -> str:
        """Add all tokens of the sequence, up to the first stop, and return their text."""
        if not self._stops:
            self.tokens += tokens
            return self._tokenizer.continued(self._before, tokens)[self._given :]
        text = ""
        for token in tokens:
            text += self.add(token)
            if self.stopped:
                return text
        return text + self.rest()

    @property
    def place(self) -> tuple[int, bool]:
        """Start of the next token's text, in characters, and whether a text begins there."""
        return self._window.place, self._window.is_empty

    def _all_held(self) -> str:
        return self._held + self._window.uncertain[self._given :]

    def _taken(self, text: str) -> str:
        self._held = self._held[len(text) :]
        return text


class _Window:
    """Decodes tokens one by one to the text of all of them, each with the last ones before it. (`tokenizers`'s
    DecodeStream keeps the end of a text that breaks off in a character, and fails where bytes after valid ones make
    these invalid.)
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokenizer.context(before)
        # how many characters of these tokens' text are certain
        self._shown = len(tokenizer.complete(self._tokens))
        self._n = 0  # how many characters have become certain
        self.uncertain = ""  # the end of the text, which later tokens may change

    @property
    def place(self) -> int:
        """Start of the next token's text, which may be within the character that the last ones began."""
        return self._n + len(self.uncertain.rstrip(REPLACEMENT))

    @property
    def is_empty(self) -> bool:
        """Whether there are no tokens yet."""
        return not self._tokens

    def add(self, token: int) -> str:
        """Add a token, and return the text that has become certain."""
        if self._tokenizer.is_special(token):
            return ""
        self._tokens.append(token)
        text, shown = self._tokenizer.decode(self._tokens), self._shown
        if not self._tokenizer.may_change(token):
            incomplete = len(text) - len(text.rstrip(REPLACEMENT))
            self._shown = max(shown, len(text) - min(incomplete, 3))  # a character has at most four bytes
        self.uncertain = text[self._shown :]
        if len(self._tokens) >= 2 * CONTEXT:
            kept, n = self._tokens[-CONTEXT:], len(self.uncertain) + 1
            end = self._tokenizer.decode(kept)
            if len(end) >= n and end[-n:] == text[-n:]:  # these alone give the uncertain text after some certain text
                self._tokens, self._shown = kept, len(end) - len(self.uncertain)
        self._n += len(text) - len(self.uncertain) - shown
        return text[shown : len(text) - len(self.uncertain)]


class Ends(NamedTuple):
    """Tokens and strings that end a text."""

    tokens: tuple[int, ...]
    stops: tuple[str, ...]  # texts before which it ends

    @staticmethod
    def of(tokenizer: Tokenizer, stops: Sequence[str] = (), tokens: Sequence[int] = ()) -> "Ends":
        """Return the end tokens of a tokenizer, further ones, and stops, which may name special tokens."""
        named = [(stop, tokenizer.special_token(stop)) for stop in stops]
        found = [*tokenizer.end_tokens, *tokens, *(token for _, token in named if token is not None)]
        return Ends(tuple(dict.fromkeys(found)), tuple(stop for stop, token in named if token is None))


def pieces_of(tokens: Iterable[int], pieces: Pieces, ends: Collection[int]) -> Iterator[str]:
    """Yield a sequence's text by token, up to an end token or a stop."""
    for token in tokens:
        if token in ends:
            break
        yield pieces.add(int(token))
        if pieces.stopped:
            return
    yield pieces.rest()


def before(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop, and whether there is one."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def certain(text: str, stops: Sequence[str]) -> str:
    """Return the text without an ending that may become a stop."""
    end = len(text)
    for stop in stops:
        for k in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:k]):
                end = min(end, len(text) - k)
                break
    return text[:end]
