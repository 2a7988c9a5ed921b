"""Tokenizers: bytes, characters, words, byte pair encoding trained on the data, or one loaded from a file.

    tokenizer = build_tokenizer("bytes" | "characters" | "words" | "bpe", texts, N_V=...)
    tokenizer.encode(text) -> list[int]             without bos and eos; decode(ids) skips special tokens
    tokenizer.framed(ids, ends=True) -> list[int]   with the tokens before and after a text
    tokenizer.save(path); load_tokenizer(path)      a JSON file

A loaded tokenizer keeps its own IDs, and the paper's three special tokens follow them, so N_V is its size plus 3. Its
own tokens for the same purposes (BERT's [MASK], [CLS], [SEP], GPT-2's <|endoftext|>) remain ordinary tokens. A
tokenizer that came with a model (`training.interchange`) keeps the model's special tokens, `tokenizer.special`.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from training.data.base_tokenizer import FORMAT, UNKNOWN, Tokenizer
from training.data.markup import Markup
from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.translation_tokenizers import SentencePieceTokenizer
from training.disk import local_path, parse_json, read_text, reason

# A word includes one preceding space; whatever is between words is a token, too, so that the tokens join to the text.
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s")

BUILT = ("bytes", "characters", "words", "bpe")
"""Tokenizers that are built from the training data; others are files."""
USE_ANOTHER = "use a tokenizer with a token for unknown text, or bytes or bpe, which encode any text"


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code <= 0xDCFF:  # Python's representation of a byte that is not UTF-8
            raise DataError(
                f"expected UTF-8, got the byte 0x{code - 0xDC00:02x} at character {error.start}; convert the text"
            ) from None
        raise DataError(
            f"the text has a lone surrogate, U+{code:04X}, at character {error.start}: it is not valid Unicode"
        ) from None


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8. Decoding replaces invalid UTF-8 by U+FFFD, since a model may generate any bytes."""

    N_V = 256 + 3

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of `text`."""
        return list(_utf8(text))

    def _decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def _spelled(self, token: int) -> bytes:
        return bytes([token])

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "bytes"}


class _Listed(Tokenizer):
    """A tokenizer with a list of pieces, by token ID."""

    kind: str

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = list(vocabulary)
        self.N_V = len(self.vocabulary) + 3
        self._ids = {piece: i for i, piece in enumerate(self.vocabulary)}

    def _decode(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the pieces."""
        return {"kind": self.kind, "vocabulary": self.vocabulary}


class CharacterTokenizer(_Listed):
    """The characters of the data, in the order of their code points; any other character is an error."""

    kind = "characters"

    def encode(self, text: str) -> list[int]:
        """Return the ID of each character. Raises DataError, naming the first character outside the vocabulary."""
        _utf8(text)
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            character = error.args[0]
            raise DataError(
                f"character {character!r} (U+{ord(character):04X}) is not among the {len(self.vocabulary)} "
                "characters of the data that the tokenizer was built from; use bytes or bpe, which encode any text"
            ) from None


class WordTokenizer(_Listed):
    """The most frequent words, with the space before them, white space and punctuation; others are <unk>, ID 0."""

    kind, unknown = "words", 0

    def encode(self, text: str) -> list[int]:
        """Return the ID of each word, 0 for unknown ones."""
        _utf8(text)
        return [self._ids.get(word, 0) for word in WORD.findall(text)]


class _Characters:
    """The characters that a tokenizer of the library keeps: a model without a token for unknown text drops others."""

    def __init__(self, inner: library.Tokenizer) -> None:
        self._normalizer = inner.normalizer
        self._inner = library.Tokenizer(inner.model)  # without the normalizer
        if inner.pre_tokenizer is not None:
            self._inner.pre_tokenizer = inner.pre_tokenizer
        self._inner.add_tokens(list(inner.get_added_tokens_decoder().values()))
        self._kept: set[str] = set()  # by themselves
        self._dropped: set[str] = set()

    def check(self, text: str) -> None:
        """Raise DataError if a character of a text would vanish."""
        text = self._normalizer.normalize_str(text) if self._normalizer else text
        for character in set(text) - self._kept - self._dropped:
            (self._kept if self._keeps(character) else self._dropped).add(character)
        doubtful = self._dropped.intersection(text)
        tokens = "".join(self._inner.encode(text, add_special_tokens=False).tokens) if doubtful else ""
        for character in sorted(doubtful):
            if tokens.count(character) < text.count(character):  # not all are part of longer tokens
                raise DataError(
                    f"character {character!r} (U+{ord(character):04X}) would vanish, since the tokenizer has no token "
                    f"for it; {USE_ANOTHER}"
                )

    def _keeps(self, character: str) -> bool:
        """Whether a character becomes tokens, or is none of a word's, such as white space between words."""
        splitter = self._inner.pre_tokenizer
        if splitter is not None and not splitter.pre_tokenize_str(character):
            return True
        try:
            return bool(self._inner.encode(character, add_special_tokens=False).ids)
        except Exception:  # a model of words, which raises for those that it lacks
            return True


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, without its post-processor, truncation and padding: sequences are framed
    by the paper's bos and eos. `target` decodes, if the model's output has another vocabulary than its input. Messages
    of a conversation are plain text, unless `messages_are_markup`: then names of control tokens in them become these.
    """

    def __init__(
        self,
        inner: library.Tokenizer,
        *,
        special: SpecialTokens | None = None,
        target: library.Tokenizer | None = None,
        chat_template: str | None = None,
        messages_are_markup: bool = False,
    ) -> None:
        self.messages_are_markup = messages_are_markup
        self.inner = library.Tokenizer.from_str(inner.to_str())
        self.special, self.target, self.chat_template = special, target, chat_template
        if special:
            self.inner.encode_special_tokens = True  # in a text, "[MASK]" is ordinary text
        self.inner.no_truncation()
        self.inner.no_padding()
        size = 1 + max(self.inner.get_vocab(with_added_tokens=True).values())
        self.N_V = special.N_V if special else size + 3
        unknown = getattr(self.inner.model, "unk_token", None)
        self.unknown = self.inner.token_to_id(unknown) if unknown else None

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text, computed in parallel."""
        for text in texts:
            _utf8(text)
        try:
            encodings = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"the tokenizer has no token for a part of the text ({error}); {USE_ANOTHER}") from None
        for text in texts:
            self._characters.check(text)
        return [encoding.ids for encoding in encodings]

    @functools.cached_property
    def _characters(self) -> "_Characters":
        return _Characters(self.inner)

    @functools.cached_property
    def markup(self) -> Markup:
        """Encodes rendered conversations."""
        return Markup(self.inner, self.special.all() if self.special else ())

    def encode_markup(self, text: str, plain: Sequence[int] = ()) -> list[int]:
        """Return a text's tokens; names of control tokens stand for these, except with an index of `plain` inside."""
        return self.encode_markup_with_spans(text, plain)[0]

    def encode_markup_with_spans(self, text: str, plain: Sequence[int] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token IDs as `encode_markup`, and the span of characters of each token."""
        _utf8(text)
        self._characters.check(text)
        return self.markup.encode(text, plain)

    def _decode(self, ids: list[int]) -> str:
        return (self.target or self.inner).decode(ids, skip_special_tokens=False)

    def name(self, token: int) -> str:
        """Return the text that stands for a special token, such as <|im_end|>."""
        return self.inner.id_to_token(token) or super().name(token)

    def _spelled(self, token: int) -> bytes:
        inner = self.target or self.inner
        text = inner.id_to_token(token) or ""
        if token in self._bytes:
            return bytes([int(text[3:5], 16)])
        if self._is_byte_level and all(character in BYTES for character in text):
            return bytes(BYTES[character] for character in text)
        return super()._spelled(token)

    def may_change(self, token: int) -> bool:
        """Return whether a token is a byte such as <0xE2>: a run that is not valid UTF-8 decodes to U+FFFD for each."""
        return token in self._bytes

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        decoder = (self.target or self.inner).decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    @functools.cached_property
    def _bytes(self) -> frozenset[int | None]:
        inner = self.target or self.inner
        if inner.decoder is None or b'"ByteFallback"' not in inner.decoder.__getstate__():
            return frozenset()
        return frozenset(inner.token_to_id(f"<0x{byte:02X}>") for byte in range(256)) - {None}

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the library's description."""
        options = {
            "special": self.special and self.special.to_json(),
            "target": self.target and json.loads(self.target.to_str()),
            "chat_template": self.chat_template,
            "messages_are_markup": self.messages_are_markup or None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return {"kind": "library", "tokenizer": json.loads(self.inner.to_str()), **given}


def byte_characters() -> list[str]:
    """Return the character for each byte in byte-level vocabularies: the byte itself, if it is printable."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


BYTES = {character: byte for byte, character in enumerate(byte_characters())}


class NumberTokenizer(Tokenizer):
    """Token IDs written as decimal numbers separated by spaces, for a model that came without a tokenizer."""

    special: SpecialTokens

    def __init__(self, special: SpecialTokens) -> None:
        self.special, self.N_V = special, special.N_V

    def encode(self, text: str) -> list[int]:
        """Return the numbers in a text. Raises DataError, naming the first word that is not a token ID."""
        for word in text.split():
            if not (word.isascii() and word.isdigit() and int(word) < self.N_V):
                raise DataError(
                    f"{word!r} is not a token ID: the model came without a tokenizer, so give numbers below {self.N_V}"
                )
        return [int(word) for word in text.split()]

    def _decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the special tokens."""
        return {"kind": "numbers", "special": self.special.to_json()}


def _byte_level(model: models.BPE) -> library.Tokenizer:
    inner = library.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    return inner


def build_tokenizer(kind: str, texts: Iterable[str], *, N_V: int = 8192) -> Tokenizer:
    """Build a tokenizer of "bytes" (needs no data), "characters", "words" or "bpe" from data, or raise DataError. For
    characters, give every text that will ever be encoded; for bpe and words, training texts, for which 100 MB are
    plenty, and the vocabulary size N_V, special tokens included; it is smaller if there is little data.
    """
    minimum = {"bytes": 0, "characters": 0, "words": 5, "bpe": 260}
    if kind not in minimum:
        raise DataError(f"there is no tokenizer {kind!r}; choose one of {', '.join(minimum)}")
    if minimum[kind] > N_V:
        raise DataError(f"N_V: expected at least {minimum[kind]} for a tokenizer of {kind}, got {N_V}")
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "bpe":  # GPT-2's, of bytes: all 256 of them and at most N_V − 259 merges
        inner, alphabet = _byte_level(models.BPE()), sorted(pre_tokenizers.ByteLevel.alphabet())
        options = {"min_frequency": 2, "show_progress": False, "initial_alphabet": alphabet}
        inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=N_V - 3, **options))
        return LibraryTokenizer(inner)
    if kind == "words":
        counts = Counter(word for text in texts for word in WORD.findall(text))
        frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: N_V - 4]
        tokenizer = WordTokenizer([UNKNOWN, *(word for word, _ in frequent if word != UNKNOWN)])
    else:
        tokenizer = CharacterTokenizer(sorted({character for text in texts for character in text}))
    if not set(tokenizer.vocabulary) - {UNKNOWN}:
        raise DataError(f"the data has no text to build a tokenizer of {kind} from")
    return tokenizer


def from_json(state: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that `to_json` described, or raise KeyError or TypeError."""
    if state["kind"] == "library":
        options = {name: state[name] for name in ("chat_template", "messages_are_markup") if name in state}
        if "special" in state:
            options["special"] = SpecialTokens.from_json(state["special"])
        if "target" in state:
            options["target"] = library.Tokenizer.from_str(json.dumps(state["target"]))
        return LibraryTokenizer(library.Tokenizer.from_str(json.dumps(state["tokenizer"])), **options)
    if state["kind"] == "numbers":
        return NumberTokenizer(SpecialTokens.from_json(state["special"]))
    if state["kind"] == "bytes":
        return ByteTokenizer()
    if state["kind"] == "sentencepiece":
        return SentencePieceTokenizer.from_json(state)
    return {"characters": CharacterTokenizer, "words": WordTokenizer}[state["kind"]](state["vocabulary"])


def gpt2_tokenizer(vocabulary: str | Path, merges: str | Path) -> LibraryTokenizer:
    """Return a byte-level BPE from GPT-2's two files (encoder.json and vocab.bpe, or vocab.json and merges.txt)."""
    return LibraryTokenizer(_byte_level(models.BPE.from_file(str(vocabulary), str(merges))))


def bert_tokenizer(vocabulary: str | Path) -> LibraryTokenizer:
    """Return BERT's WordPiece tokenizer from its vocab.txt; it lowercases text if no entry has an uppercase letter."""
    lines = Path(vocabulary).read_text(encoding="utf-8").splitlines()
    if "[UNK]" not in lines:
        raise DataError(f"{vocabulary} has no [UNK], so it is not a WordPiece vocabulary")
    words = [line for line in lines if not re.fullmatch(r"\[.*\]", line)]
    inner = library.Tokenizer(models.WordPiece.from_file(str(vocabulary), unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=not any(w != w.lower() for w in words))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return LibraryTokenizer(inner)


def _load_directory(path: Path) -> Tokenizer:
    if (path / "tokenizer.json").is_file():
        return load_tokenizer(path / "tokenizer.json")
    for vocabulary, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return gpt2_tokenizer(path / vocabulary, path / merges)
    if (path / "vocab.txt").is_file():
        return bert_tokenizer(path / "vocab.txt")
    raise DataError(
        f"{path} holds no tokenizer: expected tokenizer.json, or encoder.json and vocab.bpe, "
        "or vocab.json and merges.txt, or vocab.txt"
    )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer, or raise DataError: a file that `Tokenizer.save` wrote, a tokenizer.json of the `tokenizers`
    library, BERT's vocab.txt, or a directory with one of these or GPT-2's encoder.json and vocab.bpe (or vocab.json,
    merges.txt).
    """
    path = local_path(path)
    if path.is_dir():
        return _load_directory(path)
    try:
        if path.suffix.lower() == ".txt":
            return bert_tokenizer(path)
        state = parse_json(read_text(path))
        if state.get("format") == FORMAT:
            return from_json(state)
        return LibraryTokenizer(library.Tokenizer.from_str(json.dumps(state)))
    except FileNotFoundError:
        raise DataError(
            f"--tokenizer: expected one of {', '.join(BUILT)}, or the path of a tokenizer, got {str(path)!r}"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {reason(error)}") from None
    except DataError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{path} is not a tokenizer that can be read: {error}") from None
