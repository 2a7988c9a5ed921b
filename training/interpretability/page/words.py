"""Tokens as readable text."""

from collections.abc import Iterable

from training.data.tokenizers import ByteTokenizer, LibraryTokenizer, Tokenizer

SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_AS_THEY_ARE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {chr(b): b for b in _AS_THEY_ARE}
BYTES |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in _AS_THEY_ARE)}
"""The byte that each character stands for in byte-level tokenizers."""


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token: the name of a special token, or the digits of a byte that is no whole character.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> [token_text(tokenizer, v) for v in (*"é ".encode(), tokenizer.bos_token)]
        ['⟨C3⟩', '⟨A9⟩', ' ', '[BOS]']
    """
    if isinstance(tokenizer, LibraryTokenizer):
        name = tokenizer.inner.id_to_token(token)
        if name is not None and (token in tokenizer.special_tokens or name.startswith(("▁", "##"))):
            return name.replace("▁", " ")
    named = _named(tokenizer).get(token)
    if named is not None:
        return named
    if isinstance(tokenizer, ByteTokenizer) and token > 127:
        return f"⟨{token:02X}⟩"
    text = tokenizer.decode([token])
    if "\ufffd" in text and isinstance(tokenizer, LibraryTokenizer):
        return _of_bytes(tokenizer.inner.id_to_token(token) or "") or text
    return text or f"⟨{token}⟩"


def _of_bytes(name: str) -> str:
    """Return the text of a token that begins or ends within a character; "" if its name is not byte-level."""
    if not set(name) <= BYTES.keys():
        return ""
    text = bytes(BYTES[c] for c in name).decode("utf-8", "surrogateescape")
    return "".join(f"⟨{ord(c) - 0xDC00:02X}⟩" if "\udc80" <= c <= "\udcff" else c for c in text)


def _named(tokenizer: Tokenizer) -> dict[int, str]:
    special = tokenizer.special
    if special is None:
        return {tokenizer.mask_token: "[MASK]", tokenizer.bos_token: "[BOS]", tokenizer.eos_token: "[EOS]"}
    named = {special.mask: "[MASK]", special.bos: "[BOS]", special.eos: "[EOS]"}
    return {token: name for token, name in named.items() if token is not None}


def readable(text: str) -> str:
    r"""Make everything in a token visible: spaces, line feeds, and unprintable characters.

    Example:
        >>> readable(" a\n"), readable("\x1b")
        ('·a⏎', '⟨U+001B⟩')
    """
    return "".join(SHOWN.get(c) or (c if c.isprintable() else f"⟨U+{ord(c):04X}⟩") for c in text)


def readable_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """Return the readable tokens of a text."""
    return [readable(token_text(tokenizer, int(token))) for token in tokens]
