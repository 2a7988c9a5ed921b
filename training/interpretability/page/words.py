"""Tokens as a reader sees them."""

from collections.abc import Iterable

from training.data.tokenizers import ByteTokenizer, LibraryTokenizer, Tokenizer

SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_AS_THEY_ARE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {chr(b): b for b in _AS_THEY_ARE}
BYTES |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in _AS_THEY_ARE)}
"""The bytes by the characters that byte-level tokenizers name them with."""


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token: a special one's name, and of a byte that is not a character by itself, its digits.

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
    """The text of a token that begins or ends within a character, by the name that byte-level tokenizers give it."""
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
    r"""A token with everything in it to be seen: spaces, line feeds, and what has no form.

    Example:
        >>> readable(" a\n"), readable("\x1b")
        ('·a⏎', '⟨U+001B⟩')
    """
    return "".join(SHOWN.get(c) or (c if c.isprintable() else f"⟨U+{ord(c):04X}⟩") for c in text)


def readable_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """The tokens of a text as a reader sees them."""
    return [readable(token_text(tokenizer, int(token))) for token in tokens]
