"""Text streamed token by token: the part that no later token can change, up to the first stop string."""

from collections.abc import Iterable, Iterator, Sequence

from training.data.tokenizers import Tokenizer

REPLACEMENT = "\ufffd"


class Pieces:
    """The text of one sequence.

    Attributes:
        tokens: the tokens so far.
        stopped: whether the text contains a stop; everything from it on is dropped.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), *, given: int = 0) -> None:
        """Begin with no tokens. The text ends before the first stop, and its first ``given`` characters, which repeat
        the prompt, are left out.
        """
        self._tokenizer, self._stops, self._given = tokenizer, stops, given
        self._shown = ""
        self.tokens: list[int] = []
        self.stopped = False

    def add(self, token: int) -> str:
        """Add a token, and return the text that has become certain."""
        self.tokens.append(token)
        text, self.stopped = before(self._text(), self._stops)
        return self._new(text if self.stopped else certain(text, self._stops))

    def rest(self) -> str:
        """Return the remaining text, after the last token."""
        return self._new(before(self._text(), self._stops)[0])

    def all(self, tokens: Sequence[int]) -> str:
        """Add all tokens of the sequence, up to the first stop, and return their text."""
        if not self._stops:
            self.tokens += tokens
            return self.rest()
        text = ""
        for token in tokens:
            text += self.add(token)
            if self.stopped:
                return text
        return text + self.rest()

    def _text(self) -> str:
        return self._tokenizer.decode(self.tokens)[self._given :]

    def _new(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._shown += new
        return new


def pieces_of(
    tokens: Iterable[int], tokenizer: Tokenizer, stops: Sequence[str] = (), *, given: int = 0
) -> Iterator[str]:
    """Yield the text of a sequence token by token, without its first ``given`` characters, up to an end token or a
    stop.
    """
    pieces = Pieces(tokenizer, stops, given=given)
    ends = tokenizer.end_tokens
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
    """Return the text without an ending that may become a stop, or another character when more bytes follow."""
    text = text.rstrip(REPLACEMENT)
    end = len(text)
    for stop in stops:
        for k in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:k]):
                end = min(end, len(text) - k)
                break
    return text[:end]
