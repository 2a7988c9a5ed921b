"""Apply tokenizer_config.json to the tokenizer beside it, as transformers does."""

from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import models, normalizers, pre_tokenizers, processors

from training.interchange.description import read_json
from training.interchange.errors import InterchangeError

CLASSES = {"bert": "BertTokenizer", "gpt2": "GPT2Tokenizer", "bart": "BartTokenizer"}
"""The class of a tokenizer by its model's `model_type`, if tokenizer_config.json does not name it."""
BYTE_LEVEL = ("GPT2Tokenizer", "BartTokenizer", "RobertaTokenizer")
END_OF_TEXT = "<|endoftext|>"


def apply(path: Path, inner: library.Tokenizer, model_type: str) -> None:
    """Change a checkpoint's tokenizer as the files beside it specify. Raises InterchangeError if an added token would
    get another ID than specified.
    """
    named = path / "tokenizer_config.json"
    settings = read_json(named) if named.is_file() else {}
    kind = str(settings.get("tokenizer_class") or CLASSES.get(model_type, "")).removesuffix("Fast")
    if kind == "BertTokenizer" and named.is_file() and isinstance(inner.model, models.WordPiece):
        inner.normalizer = normalizers.BertNormalizer(
            lowercase=_flag(named, settings, "do_lower_case", True),
            strip_accents=_flag(named, settings, "strip_accents", None),
            handle_chinese_chars=_flag(named, settings, "tokenize_chinese_chars", True),
        )
    if kind in BYTE_LEVEL and named.is_file() and isinstance(inner.model, models.BPE):
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=bool(_flag(named, settings, "add_prefix_space", False))
        )
    _add_tokens(path, inner, settings)
    if not (path / "tokenizer.json").is_file():  # it would specify what comes before and after a text
        _frame(inner, settings, kind)


def _flag(path: Path, settings: dict[str, Any], name: str, default: bool | None) -> Any:
    value = settings.get(name, default)
    if value is not None and not isinstance(value, bool):
        raise InterchangeError(f"{path}: {name}: expected true or false, got {value!r}")
    return default if value is None else value


def _add_tokens(path: Path, inner: library.Tokenizer, settings: dict[str, Any]) -> None:
    """Add the tokens that the other files name but tokenizer.json does not."""
    named: dict[int, library.AddedToken] = {}
    if (path / "added_tokens.json").is_file():
        for content, token in read_json(path / "added_tokens.json").items():
            named[_id(path / "added_tokens.json", token)] = library.AddedToken(content, normalized=True)
    for token, fields in (settings.get("added_tokens_decoder") or {}).items():
        if not isinstance(fields, dict) or not isinstance(fields.get("content"), str):
            raise InterchangeError(
                f"{path / 'tokenizer_config.json'}: added_tokens_decoder: expected a token's content, got {fields!r}"
            )
        options = {name: bool(fields.get(name)) for name in ("lstrip", "rstrip", "single_word", "special")}
        normalized = bool(fields.get("normalized", not options["special"]))
        number = _id(path / "tokenizer_config.json", token)
        named[number] = library.AddedToken(fields["content"], normalized=normalized, **options)
    known = inner.get_added_tokens_decoder()
    for token, added in sorted(named.items()):
        if token not in known:
            inner.add_tokens([added])
        found = inner.token_to_id(added.content)
        if found != token:
            raise InterchangeError(
                f"{path}: the added token {added.content!r}: expected the ID {token}, got {found}; "
                "give the tokenizer that the model was trained with"
            )


def _id(path: Path, token: Any) -> int:
    try:
        return int(token)
    except (TypeError, ValueError):
        raise InterchangeError(f"{path}: expected a token ID, got {token!r}") from None


def _frame(inner: library.Tokenizer, settings: dict[str, Any], kind: str) -> None:
    """Make the tokenizer add the tokens before and after a text that its class or its settings specify."""
    if "add_bos_token" in settings or "add_eos_token" in settings:
        default = END_OF_TEXT if kind == "GPT2Tokenizer" else None
        tokens = {name: content_of(settings.get(f"{name}_token", default)) for name in ("bos", "eos")}
        ids = {n: inner.token_to_id(t) for n, t in tokens.items() if t and settings.get(f"add_{n}_token")}
        framed = {n: (tokens[n], i) for n, i in ids.items() if i is not None}
        before, after = ([framed[name][0]] if name in framed else [] for name in ("bos", "eos"))
        inner.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=list(framed.values())
        )
    elif kind in BYTE_LEVEL[1:]:
        end, begin = inner.token_to_id("</s>"), inner.token_to_id("<s>")
        if end is not None and begin is not None:
            inner.post_processor = processors.RobertaProcessing(("</s>", end), ("<s>", begin))


def content_of(token: Any) -> Any:
    """Return the text of a special token, which settings give as a string or as an object with fields."""
    return token.get("content") if isinstance(token, dict) else token
