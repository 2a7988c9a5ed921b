"""Tokenizers of published translation models: SentencePiece with a separate vocabulary, and Moses with fastBPE.

Both have a vocabulary for the source and one for the target, which may be the same. Their libraries are in the extra
``translation``, and are imported when such a tokenizer is constructed.
"""

import base64
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers as library
from tokenizers import models

from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.tokenizer import UNKNOWN, Tokenizer

END_OF_WORD = "</w>"


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise DataError(f"this tokenizer needs {module}: pip install {module}") from None


class _Translation(Tokenizer):
    """Encodes with one vocabulary, `source`, and decodes with another, `target`: the token ID of each piece."""

    def __init__(self, source: Mapping[str, int], target: Mapping[str, int], special: SpecialTokens) -> None:
        if UNKNOWN not in source:
            raise DataError(f"the tokenizer's vocabulary has no {UNKNOWN}")
        self.source, self.target, self.special = dict(source), dict(target), special
        self.N_V = special.N_V
        self.unknown = self.source[UNKNOWN]
        self._target_pieces = {token: piece for piece, token in self.target.items()}

    def _ids(self, pieces: Sequence[str]) -> list[int]:
        return [self.source.get(piece, self.source[UNKNOWN]) for piece in pieces]

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._target_pieces.get(token, UNKNOWN) for token in ids]

    def _vocabularies(self) -> dict[str, Any]:
        assert self.special
        return {"source": self.source, "target": self.target, "special": self.special.to_json()}


class SentencePieceTokenizer(_Translation):
    """Marian's tokenizer: SentencePiece `models` of source and target, with the token IDs of pieces in a separate
    vocabulary. A text may begin with the language to translate into, such as ``>>fr<<``.
    """

    def __init__(
        self,
        source_model: bytes,
        target_model: bytes,
        *,
        source: Mapping[str, int],
        target: Mapping[str, int],
        special: SpecialTokens,
    ) -> None:
        super().__init__(source, target, special)
        self.models = source_model, target_model
        if not all(self.models):
            raise DataError("a SentencePiece model is damaged: it is empty")
        Processor = _needed("sentencepiece").SentencePieceProcessor
        try:
            self._encoder, self._decoder = (Processor(model_proto=model) for model in self.models)
        except RuntimeError as error:
            raise DataError(f"a SentencePiece model is damaged: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`."""
        language = text[: text.find("<<") + 2] if text.startswith(">>") and "<<" in text else ""
        pieces = self._encoder.encode(text[len(language) :], out_type=str)
        return self._ids([language, *pieces] if language else pieces)

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode_pieces(self._pieces(ids)).replace("▁", " ").strip()

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the two models and the vocabularies."""
        source, target = (base64.b64encode(model).decode() for model in self.models)
        return {"kind": "sentencepiece", "source_model": source, "target_model": target, **self._vocabularies()}


class MosesTokenizer(_Translation):
    """FSMT's tokenizer: the Moses scripts split text into words, and fastBPE splits words into pieces, which it merges
    in the order of `merges`; `languages` are the codes of source and target.
    """

    is_local = False  # whether a quotation mark opens or closes depends on all before it

    def __init__(
        self,
        languages: Sequence[str],
        merges: Sequence[Sequence[str]],
        *,
        source: Mapping[str, int],
        target: Mapping[str, int],
        special: SpecialTokens,
        lower: bool = False,
    ) -> None:
        super().__init__(source, target, special)
        moses = _needed("sacremoses")
        self.languages, self.lower = tuple(languages), lower
        self.merges = [(first, second) for first, second in merges]
        reads, writes = self.languages
        self._normalizer = moses.MosesPunctNormalizer(
            reads, pre_replace_unicode_punct=True, post_remove_control_chars=True
        )
        self._tokenizer, self._detokenizer = moses.MosesTokenizer(reads), moses.MosesDetokenizer(writes)
        merged = (piece for pair in self.merges for piece in (*pair, "".join(pair)))
        known = dict.fromkeys([UNKNOWN, *self.source, *merged])
        numbers = {piece: i for i, piece in enumerate(known)}
        self._bpe = library.Tokenizer(
            models.BPE(numbers, self.merges, unk_token=UNKNOWN, end_of_word_suffix=END_OF_WORD)
        )

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`."""
        clean = self._normalizer.normalize(text.lower() if self.lower else text)
        words = self._tokenizer.tokenize(clean, aggressive_dash_splits=True, escape=True)
        return self._ids(self._bpe.encode(words, is_pretokenized=True).tokens) if words else []

    def _decode(self, ids: list[int]) -> str:
        text = "".join(self._pieces(ids)).replace(END_OF_WORD, " ")
        return self._detokenizer.detokenize(text.split())

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the languages, the merges and the vocabularies."""
        merges = [list(pair) for pair in self.merges]
        rules = {"languages": list(self.languages), "merges": merges, "lower": self.lower}
        return {"kind": "moses", **rules, **self._vocabularies()}


def from_json(state: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that `to_json` described. Raises KeyError or TypeError, or DataError without its library."""
    shared = {
        "source": state["source"],
        "target": state["target"],
        "special": SpecialTokens.from_json(state["special"]),
    }
    if state["kind"] == "moses":
        return MosesTokenizer(state["languages"], state["merges"], lower=state["lower"], **shared)
    source, target = (base64.b64decode(state[f"{side}_model"]) for side in ("source", "target"))
    return SentencePieceTokenizer(source, target, **shared)
