"""Tokenizers: bytes, characters, words, byte pair encoding trained on the data, or one loaded from a file.

All of them share one small interface, `Tokenizer`:

    tokenizer.N_V                                   vocabulary size, the three special tokens included
    tokenizer.mask_token, .bos_token, .eos_token    N_V-3, N_V-2, N_V-1, unless a model came with it
    tokenizer.encode(text) -> list[int]             without bos and eos
    tokenizer.encode_batch(texts) -> list[list[int]]
    tokenizer.framed(ids, ends=True) -> list[int]   with what the model reads before and after a text
    tokenizer.decode(ids) -> str                    special tokens give nothing
    tokenizer.save(path); load_tokenizer(path)      one JSON file
    tokenizer.fingerprint() -> str

    build_tokenizer("bytes" | "characters" | "words" | "bpe", texts, N_V=...)

The special tokens of a loaded tokenizer: its own IDs stay as they are, and the paper's three follow them,
  so that
N_V is its size plus 3. What it had for the same purpose (BERT's [MASK], [CLS], [SEP], GPT-2's
<|endoftext|>) stays an ordinary token; `special_origins` names those IDs, so that pretrained embeddings
can be copied to the new rows. A tokenizer that came with a model (`training.interchange`) keeps the model's
special tokens, `tokenizer.special`.
"""

import abc
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from training.data.records import DataError, fingerprint, hash64
from training.data.special_tokens import SpecialTokens

FORMAT = "formal-algorithms tokenizer 1"
UNKNOWN = "<unk>"
# A word takes one preceding space along; what is between words are tokens too, so that joining tokens
# gives the text.
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s")


class Tokenizer(abc.ABC):
    """What every tokenizer offers; see the module's docstring.

    Attributes:
      N_V: size of the vocabulary.
      special: the special tokens of the model that the tokenizer came with; None: the paper's.
      special_origins: its own IDs for mask, bos and eos, where it has them.
    """

    N_V: int
    special: SpecialTokens | None = None
    special_origins: tuple[int | None, int | None, int | None] = (None, None, None)

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
    def special_tokens(self) -> tuple[int, ...]:
        """The tokens that no text has."""
        return self.special.all() if self.special else (self.mask_token, self.bos_token, self.eos_token)

    def framed(self, ids: Sequence[int], *, ends: bool = True) -> list[int]:
        """Return a text's token IDs as a model reads them: after bos, and where the text ends, before eos."""
        if self.special:
            return self.special.framed(ids, ends=ends)
        return [self.bos_token, *ids, *([self.eos_token] if ends else [])]

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`, without bos and eos.

        Raises:
          DataError: the text has something that the vocabulary lacks.
        """

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text; the tokenizers that can do so work in parallel."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token IDs; the special tokens give nothing.

        Raises:
          DataError: an ID is outside [0, N_V).
        """
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


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}: "
            "it is not valid Unicode"
        ) from None


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8. Decoding replaces what is not UTF-8 by U+FFFD, as generated bytes may be
    anything.
    """

    N_V = 256 + 3

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of `text`."""
        return list(_utf8(text))

    def _decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        """Return the kind; there is nothing else."""
        return {"kind": "bytes"}


class CharacterTokenizer(Tokenizer):
    """The characters of the data, in the order of their code points; any other character is an error.

    Attributes:
      vocabulary: the characters; the index is the token ID.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = list(vocabulary)
        self.N_V = len(self.vocabulary) + 3
        self._ids = {character: i for i, character in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Return one ID for each character.

        Raises:
          DataError: names the first character that is not in the vocabulary.
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            character = error.args[0]
            raise DataError(
                f"character {character!r} (U+{ord(character):04X}) is not among the {len(self.vocabulary)} "
                "characters of the data that the tokenizer was built from; use bytes or bpe, which know all"
            ) from None

    def _decode(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the characters."""
        return {"kind": "characters", "vocabulary": self.vocabulary}


class WordTokenizer(Tokenizer):
    """The most frequent words of the data; every other word is the one token <unk>, ID 0.

    A word carries the space before it, and other white space and punctuation are words too, so that
    decoding a text of known words gives it back exactly.

    Attributes:
      vocabulary: the words; the index is the token ID.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = list(vocabulary)
        self.N_V = len(self.vocabulary) + 3
        self._ids = {word: i for i, word in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Return one ID for each word, 0 for an unknown one."""
        return [self._ids.get(word, 0) for word in WORD.findall(text)]

    def _decode(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the words."""
        return {"kind": "words", "vocabulary": self.vocabulary}


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library: byte pair encoding, WordPiece, or whatever a tokenizer.json
    holds.

    Its post-processor, truncation and padding are taken off: sequences are framed by the paper's bos and eos.

    Attributes:
      target: what decodes, where a model's output has another vocabulary than its input.
    """

    def __init__(
        self,
        inner: library.Tokenizer,
        *,
        special: SpecialTokens | None = None,
        target: library.Tokenizer | None = None,
    ) -> None:
        self._inner = library.Tokenizer.from_str(inner.to_str())
        self.special, self.target = special, target
        if special:
            self._inner.encode_special_tokens = True  # in a text, "[MASK]" is six characters
        self._inner.no_truncation()
        self._inner.no_padding()
        size = 1 + max(self._inner.get_vocab(with_added_tokens=True).values())
        self.N_V = special.N_V if special else size + 3
        self.special_origins = self._origins()

    @property
    def inner(self) -> library.Tokenizer:
        """The library's tokenizer."""
        return self._inner

    def _origins(self) -> tuple[int | None, int | None, int | None]:
        names = (
            ("[MASK]", "<mask>"),
            ("[CLS]", "<s>", "<|endoftext|>"),
            ("[SEP]", "</s>", "<|endoftext|>"),
        )
        mask, bos, eos = (
            next((i for i in map(self._inner.token_to_id, candidates) if i is not None), None) for candidates in names
        )
        return mask, bos, eos

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text, working in parallel."""
        for text in texts:
            _utf8(text)
        return [e.ids for e in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _decode(self, ids: list[int]) -> str:
        return (self.target or self._inner).decode(ids, skip_special_tokens=False)

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the library's own description."""
        state = {"kind": "library", "tokenizer": json.loads(self._inner.to_str())}
        if self.special:
            state["special"] = self.special.to_json()
        if self.target:
            state["target"] = json.loads(self.target.to_str())
        return state


class NumberTokenizer(Tokenizer):
    """Token IDs in digits, with spaces between: of a model that came without a tokenizer."""

    def __init__(self, special: SpecialTokens) -> None:
        self.special = special
        self.N_V = special.N_V

    def encode(self, text: str) -> list[int]:
        """Return the numbers in a text.

        Raises:
          DataError: names the first word that is no token ID.
        """
        for word in text.split():
            if not (word.isascii() and word.isdigit() and int(word) < self.N_V):
                raise DataError(
                    f"{word!r} is no token ID: the model came without a tokenizer, so give numbers below {self.N_V}"
                )
        return [int(word) for word in text.split()]

    def _decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the special tokens."""
        return {"kind": "numbers", "special": self.special.to_json() if self.special else {}}


def _train_bpe(texts: Iterable[str], N_V: int) -> LibraryTokenizer:
    """Train GPT-2's byte-level byte pair encoding: all 256 bytes and at most N_V-259 merges."""
    inner = library.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_V - 3,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    inner.train_from_iterator(texts, trainer)
    return LibraryTokenizer(inner)


def _train_words(texts: Iterable[str], N_V: int) -> WordTokenizer:
    counts = Counter(word for text in texts for word in WORD.findall(text))
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: N_V - 4]
    return WordTokenizer([UNKNOWN, *(word for word, _ in frequent if word != UNKNOWN)])


def sampled(texts: Iterable[str], share: float) -> Iterable[str]:
    """Return about `share` of the texts, chosen by their contents, so that the choice is the same in
    every run.
    """
    return texts if share >= 1 else (t for t in texts if hash64(t) < share * 2**64)


def build_tokenizer(kind: str, texts: Iterable[str], *, N_V: int = 8192) -> Tokenizer:
    """Build a tokenizer from data.

    Args:
      kind: "bytes" (needs no data), "characters", "words" or "bpe".
      texts: the data; for characters every text that will ever be encoded, held-out ones too; for bpe and
        words the training texts, of which 100 MB are plenty (see `sampled`).
      N_V: the wanted vocabulary size, special tokens included, for words and bpe. Little data gives fewer.

    Returns:
      the tokenizer.

    Raises:
      DataError: unknown kind, an impossible N_V, or no text.
    """
    minimum = {"bytes": 0, "characters": 0, "words": 5, "bpe": 260}
    if kind not in minimum:
        raise DataError(f"there is no tokenizer {kind!r}; choose one of {', '.join(minimum)}")
    least = minimum[kind]
    if least > N_V:
        raise DataError(f"N_V is {N_V}, but a tokenizer of {kind} needs at least {least}")
    if kind == "bytes":
        return ByteTokenizer()
    tokenizer: Tokenizer
    if kind == "characters":
        tokenizer = CharacterTokenizer(sorted({character for text in texts for character in text}))
    else:
        tokenizer = _train_words(texts, N_V) if kind == "words" else _train_bpe(texts, N_V)
    if {"characters": 4, "words": 5, "bpe": 259}[kind] > tokenizer.N_V:
        raise DataError(f"the data has no text to build a tokenizer of {kind} from")
    return tokenizer


def from_json(state: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.to_json` described.

    Raises:
      KeyError, TypeError: the description is incomplete or of an unknown kind.
    """
    if state["kind"] == "library":
        special = SpecialTokens.from_json(state["special"]) if "special" in state else None
        target = library.Tokenizer.from_str(json.dumps(state["target"])) if "target" in state else None
        return LibraryTokenizer(
            library.Tokenizer.from_str(json.dumps(state["tokenizer"])), special=special, target=target
        )
    if state["kind"] == "numbers":
        return NumberTokenizer(SpecialTokens.from_json(state["special"]))
    if state["kind"] == "bytes":
        return ByteTokenizer()
    return {"characters": CharacterTokenizer, "words": WordTokenizer}[state["kind"]](state["vocabulary"])


def gpt2_tokenizer(vocabulary: str | Path, merges: str | Path) -> LibraryTokenizer:
    """Return a byte-level BPE from GPT-2's two files (encoder.json and vocab.bpe, or vocab.json and
    merges.txt).
    """
    inner = library.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    return LibraryTokenizer(inner)


def bert_tokenizer(vocabulary: str | Path) -> LibraryTokenizer:
    """Return BERT's WordPiece tokenizer from its vocab.txt; it lower-cases if no entry has an upper-case
    letter.

    Raises:
      DataError: the vocabulary has no [UNK].
    """
    lines = Path(vocabulary).read_text(encoding="utf-8").splitlines()
    if "[UNK]" not in lines:
        raise DataError(f"{vocabulary} has no [UNK], so it is no WordPiece vocabulary")
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
    """Read a tokenizer.

    Args:
      path: a file that `Tokenizer.save` wrote; a tokenizer.json of the `tokenizers` library; BERT's
        vocab.txt; or a directory with one of these or with GPT-2's encoder.json and vocab.bpe (or
        vocab.json and merges.txt).

    Returns:
      the tokenizer.

    Raises:
      DataError: there is no such file, or it is none of these.
    """
    path = Path(path)
    if path.is_dir():
        return _load_directory(path)
    try:
        if path.suffix == ".txt":
            return bert_tokenizer(path)
        state = json.loads(path.read_text(encoding="utf-8"))
        if state.get("format") == FORMAT:
            return from_json(state)
        return LibraryTokenizer(library.Tokenizer.from_str(json.dumps(state)))
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}") from None
    except DataError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{path} is no tokenizer that can be read: {error}") from None
