"""The tokenizers that lie beside Marian's and FSMT's checkpoints: ours from them, and they from ours."""

import json
from pathlib import Path
from typing import Any

from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import UNKNOWN
from training.data.translation_tokenizers import MosesTokenizer, SentencePieceTokenizer
from training.interchange.description import Fields, read_json
from training.interchange.errors import InterchangeError

NOT_TEXT = ("<s>", "<pad>", UNKNOWN)
END = "</s>"


def read(path: Path, fields: Fields, special: SpecialTokens) -> MosesTokenizer | SentencePieceTokenizer | None:
    """Return the tokenizer of a checkpoint; None if it has none of these kinds.

    Args:
        path: the checkpoint.
        fields: of its config.json.
        special: the tokens that config.json names.

    Raises:
        InterchangeError: it is damaged, or its library is not installed.
    """
    kind = fields.get("model_type")
    files = {
        "marian": ("source.spm", "target.spm", "vocab.json"),
        "fsmt": ("vocab-src.json", "vocab-tgt.json", "merges.txt"),
    }
    if kind not in files or not all((path / name).is_file() for name in files[kind]):
        return None
    try:
        return _sentencepiece(path, special) if kind == "marian" else _moses(path, fields, special)
    except DataError as error:
        raise InterchangeError(f"{path}: {error}") from None


def _framed(special: SpecialTokens, source: dict[str, int], target: dict[str, int]) -> SpecialTokens:
    """The special tokens, where a text is read with </s> behind it, and what is no text is not written."""
    others = tuple(sorted(target[piece] for piece in NOT_TEXT if piece in target))
    return special._replace(after=(source[END],) if END in source else (), others=others)


def _sentencepiece(path: Path, special: SpecialTokens) -> SentencePieceTokenizer:
    source = read_json(path / "vocab.json")
    own = path / "target_vocab.json"
    target = read_json(own) if own.is_file() else source
    reads, writes = ((path / f"{side}.spm").read_bytes() for side in ("source", "target"))
    return SentencePieceTokenizer(reads, writes, source=source, target=target, special=_framed(special, source, target))


def _moses(path: Path, fields: Fields, special: SpecialTokens) -> MosesTokenizer:
    source, target = (read_json(path / f"vocab-{side}.json") for side in ("src", "tgt"))
    beside = path / "tokenizer_config.json"
    settings = read_json(beside) if beside.is_file() else {}
    languages = settings.get("langs") or fields.get("langs")
    if not (isinstance(languages, list) and len(languages) == 2):
        raise InterchangeError(f"{fields.path}: langs is {languages!r}, expected the codes of two languages")
    lines = (path / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [line.split()[:2] for line in lines if line.strip()]
    lower, framed = bool(settings.get("do_lower_case", False)), _framed(special, source, target)
    return MosesTokenizer(languages, merges, source=source, target=target, special=framed, lower=lower)


def write(path: Path, tokenizer: MosesTokenizer | SentencePieceTokenizer) -> None:
    """Write a tokenizer as transformers reads it.

    Args:
        path: the directory.
        tokenizer: ours.
    """
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
