"""Read the tokenizers beside Marian checkpoints as ours, and write ours there."""

import json
from pathlib import Path

from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import UNKNOWN
from training.data.translation_tokenizers import SentencePieceTokenizer
from training.interchange.description import Fields, Model, read_json
from training.interchange.errors import InterchangeError

NOT_TEXT = ("<s>", "<pad>", UNKNOWN)
END = "</s>"


def read(path: Path, fields: Fields, model: Model, special: SpecialTokens) -> SentencePieceTokenizer | None:
    """Return the tokenizer of a checkpoint, with these special tokens; None if it is not Marian's. Raises
    InterchangeError if it is damaged, or its library is not installed.
    """
    files = ("source.spm", "target.spm", "vocab.json")
    if fields.get("model_type") != "marian" or not all((path / name).is_file() for name in files):
        return None
    try:
        return _sentencepiece(path, model, special)
    except DataError as error:
        raise InterchangeError(f"{path}: {error}") from None


def _framed(special: SpecialTokens, source: dict[str, int], target: dict[str, int]) -> SpecialTokens:
    """Return the special tokens: a source text ends with </s>, and those of `NOT_TEXT` are never generated."""
    others = tuple(sorted(target[piece] for piece in NOT_TEXT if piece in target))
    return special._replace(after=(source[END],) if END in source else (), others=others)


def _vocabulary(path: Path, N_V: int) -> dict[str, int]:
    found = read_json(path)
    for piece, token in found.items():
        if type(token) is not int or not 0 <= token < N_V:
            raise InterchangeError(f"{path}: {piece!r} has the token ID {token!r}, expected an integer below {N_V}")
    return found


def _sentencepiece(path: Path, model: Model, special: SpecialTokens) -> SentencePieceTokenizer:
    source = _vocabulary(path / "vocab.json", model.config.N_V_z or model.config.N_V)
    own = path / "target_vocab.json"
    target = _vocabulary(own, model.config.N_V) if own.is_file() else source
    reads, writes = ((path / f"{side}.spm").read_bytes() for side in ("source", "target"))
    return SentencePieceTokenizer(reads, writes, source=source, target=target, special=_framed(special, source, target))


def write(path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Write a tokenizer in transformers' files."""
    for side, model in zip(("source", "target"), tokenizer.models, strict=True):
        (path / f"{side}.spm").write_bytes(model)
    separate = tokenizer.source != tokenizer.target
    vocabularies = {"vocab.json": tokenizer.source} | ({"target_vocab.json": tokenizer.target} if separate else {})
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    for name, content in {**vocabularies, "tokenizer_config.json": settings}.items():
        (path / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
