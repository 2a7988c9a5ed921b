"""Read the tokenizers beside Marian and FSMT checkpoints as ours, and write ours there."""

import json
from pathlib import Path
from typing import Any

from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import UNKNOWN
from training.data.translation_tokenizers import MosesTokenizer, SentencePieceTokenizer
from training.interchange.description import Fields, Model, read_json
from training.interchange.errors import InterchangeError

NOT_TEXT = ("<s>", "<pad>", UNKNOWN)
END = "</s>"


def read(
    path: Path, fields: Fields, model: Model, special: SpecialTokens
) -> MosesTokenizer | SentencePieceTokenizer | None:
    """Return the tokenizer of a checkpoint, with these special tokens; None if it is not of these kinds. Raises
    InterchangeError if it is damaged, or its library is not installed.
    """
    kind = fields.get("model_type")
    files = {
        "marian": ("source.spm", "target.spm", "vocab.json"),
        "fsmt": ("vocab-src.json", "vocab-tgt.json", "merges.txt"),
    }
    if kind not in files or not all((path / name).is_file() for name in files[kind]):
        return None
    try:
        return _sentencepiece(path, model, special) if kind == "marian" else _moses(path, fields, model, special)
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


def _merges(path: Path) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a piece may contain other line separators
    except UnicodeDecodeError as error:
        raise InterchangeError(f"{path} is not text in UTF-8: {error.reason}") from None
    found = [line.split()[:2] for line in lines if line.strip()]
    if single := next((merge[0] for merge in found if len(merge) < 2), None):
        raise InterchangeError(f"{path}: {single!r} is alone on its line, expected two pieces to merge")
    return found


def _sentencepiece(path: Path, model: Model, special: SpecialTokens) -> SentencePieceTokenizer:
    source = _vocabulary(path / "vocab.json", model.config.N_V_z or model.config.N_V)
    own = path / "target_vocab.json"
    target = _vocabulary(own, model.config.N_V) if own.is_file() else source
    reads, writes = ((path / f"{side}.spm").read_bytes() for side in ("source", "target"))
    return SentencePieceTokenizer(reads, writes, source=source, target=target, special=_framed(special, source, target))


def _moses(path: Path, fields: Fields, model: Model, special: SpecialTokens) -> MosesTokenizer:
    source = _vocabulary(path / "vocab-src.json", model.config.N_V_z or model.config.N_V)
    target = _vocabulary(path / "vocab-tgt.json", model.config.N_V)
    beside = path / "tokenizer_config.json"
    settings = read_json(beside) if beside.is_file() else {}
    languages = settings.get("langs") or fields.get("langs")
    if not (isinstance(languages, list) and len(languages) == 2 and all(isinstance(code, str) for code in languages)):
        raise InterchangeError(f"{fields.path}: langs: expected the codes of two languages, got {languages!r}")
    lower, framed = bool(settings.get("do_lower_case", False)), _framed(special, source, target)
    merges = _merges(path / "merges.txt")
    return MosesTokenizer(languages, merges, source=source, target=target, special=framed, lower=lower)


def write(path: Path, tokenizer: MosesTokenizer | SentencePieceTokenizer) -> None:
    """Write a tokenizer in transformers' files."""
    settings: dict[str, Any]
    if isinstance(tokenizer, SentencePieceTokenizer):
        for side, model in zip(("source", "target"), tokenizer.models, strict=True):
            (path / f"{side}.spm").write_bytes(model)
        separate = tokenizer.source != tokenizer.target
        vocabularies = {"vocab.json": tokenizer.source} | ({"target_vocab.json": tokenizer.target} if separate else {})
        settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    else:
        vocabularies = {"vocab-src.json": tokenizer.source, "vocab-tgt.json": tokenizer.target}
        merges = "".join(f"{first} {second}\n" for first, second in tokenizer.merges)
        (path / "merges.txt").write_text(merges, encoding="utf-8")
        settings = {"tokenizer_class": "FSMTTokenizer", "langs": list(tokenizer.languages)}
        settings["do_lower_case"] = tokenizer.lower
    for name, content in {**vocabularies, "tokenizer_config.json": settings}.items():
        (path / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
