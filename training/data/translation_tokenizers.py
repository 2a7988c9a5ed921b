"""The tokenizer of published translation models: SentencePiece with vocabularies of its own for source and target."""

import base64
import importlib
from collections.abc import Mapping
from typing import Any

from training.data.base_tokenizer import UNKNOWN, Tokenizer
from training.data.records import DataError
from training.data.special_tokens import SpecialTokens


class SentencePieceTokenizer(Tokenizer):
    """Marian's tokenizer: SentencePiece `models` of source and target, with the token IDs of pieces in vocabularies of
    their own, which may be the same: it encodes with `source`, and decodes with `target`. A text may begin with the
    language to translate into, such as ``>>fr<<``. Raises DataError if a model or a vocabulary is damaged, or if
    sentencepiece, which is in the extra ``translation``, is not installed.
    """

    special: SpecialTokens

    def __init__(
        self,
        source_model: bytes,
        target_model: bytes,
        *,
        source: Mapping[str, int],
        target: Mapping[str, int],
        special: SpecialTokens,
    ) -> None:
        if UNKNOWN not in source:
            raise DataError(f"the tokenizer's vocabulary has no {UNKNOWN}")
        self.source, self.target, self.special = dict(source), dict(target), special
        self.N_V = special.N_V
        self.unknown = self.source[UNKNOWN]
        self._target_pieces = {token: piece for piece, token in self.target.items()}
        self.models = source_model, target_model
        if not all(self.models):
            raise DataError("a SentencePiece model is damaged: it is empty")
        try:
            library: Any = importlib.import_module("sentencepiece")
        except ModuleNotFoundError:
            raise DataError("this tokenizer needs sentencepiece: pip install sentencepiece") from None
        try:
            self._encoder, self._decoder = (library.SentencePieceProcessor(model_proto=model) for model in self.models)
        except RuntimeError as error:
            raise DataError(f"a SentencePiece model is damaged: {error}") from None

    @staticmethod
    def from_json(state: dict[str, Any]) -> "SentencePieceTokenizer":
        """Return the tokenizer that `to_json` described. Raises KeyError or TypeError, or as the class."""
        models = (base64.b64decode(state[f"{side}_model"]) for side in ("source", "target"))
        special = SpecialTokens.from_json(state["special"])
        return SentencePieceTokenizer(*models, source=state["source"], target=state["target"], special=special)

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of `text`."""
        language = text[: text.find("<<") + 2] if text.startswith(">>") and "<<" in text else ""
        pieces = self._encoder.encode(text[len(language) :], out_type=str)
        unknown = self.source[UNKNOWN]
        return [self.source.get(piece, unknown) for piece in ([language, *pieces] if language else pieces)]

    def _decode(self, ids: list[int]) -> str:
        pieces = [self._target_pieces.get(token, UNKNOWN) for token in ids]
        return self._decoder.decode_pieces(pieces).replace("▁", " ").strip()

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the two models and the vocabularies."""
        models = {
            f"{side}_model": base64.b64encode(m).decode()
            for side, m in zip(("source", "target"), self.models, strict=True)
        }
        vocabularies = {"source": self.source, "target": self.target, "special": self.special.to_json()}
        return {"kind": "sentencepiece", **models, **vocabularies}
