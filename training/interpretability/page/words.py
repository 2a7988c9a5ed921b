"""Tokens as readable text."""

from collections.abc import Iterable

from training.data.tokenizers import LibraryTokenizer, Tokenizer

SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token: the name of a special token, or the digits of a byte that is no whole character."""
    if isinstance(tokenizer, LibraryTokenizer) and (name := tokenizer.inner.id_to_token(token) or "").startswith("##"):
        return name  # within a word
    text = tokenizer.spelled(token).decode("utf-8", "surrogateescape")
    return "".join(f"⟨{ord(c) - 0xDC00:02X}⟩" if "\udc80" <= c <= "\udcff" else c for c in text) or f"⟨{token}⟩"


def readable(text: str) -> str:
    """Make everything in a token visible: spaces, line feeds, and unprintable characters."""
    return "".join(SHOWN.get(c) or (c if c.isprintable() else f"⟨U+{ord(c):04X}⟩") for c in text)


def readable_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """Return the readable tokens of a text."""
    return [readable(token_text(tokenizer, int(token))) for token in tokens]
