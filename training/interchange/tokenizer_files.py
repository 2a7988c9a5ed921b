"""Read the tokenizer beside a checkpoint as one of ours, as transformers does, and write ours there."""

import json
from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from training.data import tokenizers
from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import LibraryTokenizer, NumberTokenizer, Tokenizer, load_tokenizer
from training.data.translation_tokenizers import SentencePieceTokenizer
from training.interchange.description import Fields, Model, read_json
from training.interchange.errors import InterchangeError

NAMES = ("mask", "bos", "eos")
TARGET = "target_tokenizer.json"
"""Our file with the tokenizer that decodes the output, if its vocabulary differs from the input's."""
TEMPLATE = "chat_template.jinja"
"""The chat template; transformers before 4.51 has it in tokenizer_config.json."""
CLASSES = {"bert": "BertTokenizer", "gpt2": "GPT2Tokenizer", "bart": "BartTokenizer"}
"""The class of a tokenizer by its model's `model_type`, if tokenizer_config.json does not name it."""
BYTE_LEVEL = ("GPT2Tokenizer", "BartTokenizer", "RobertaTokenizer")
NOT_TEXT = ("<s>", "<pad>", tokenizers.UNKNOWN)
"""Tokens of Marian that are never generated."""
MARIAN = ("source.spm", "target.spm", "vocab.json")
END_OF_TEXT = "<|endoftext|>"


def read(path: Path, fields: Fields, model: Model) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, with the model's special tokens; None if none is supported. Raises
    InterchangeError if it is damaged, or has more tokens than the model.
    """
    if fields.get("model_type") == "marian" and all((path / name).is_file() for name in MARIAN):
        return _marian(path, model, special_tokens(path, fields, model, None))
    is_byte_level = fields.get("model_type") in ("gpt2", "bart")
    is_bpe = is_byte_level and all((path / name).is_file() for name in ("vocab.json", "merges.txt"))
    if not is_bpe and not any((path / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        return None
    try:
        found = load_tokenizer(path)
        target = load_tokenizer(path / TARGET) if (path / TARGET).is_file() else None
    except DataError as error:
        raise InterchangeError(str(error)) from None
    assert isinstance(found, LibraryTokenizer)
    inner, N_V = found.inner, model.config.N_V
    _apply_config(path, inner, fields.get("model_type"), N_V)
    size = 1 + max(inner.get_vocab(with_added_tokens=True).values())
    if size > N_V:
        raise InterchangeError(f"{path}: the tokenizer has {size} tokens, but the model only N_V = {N_V}")
    special = special_tokens(path, fields, model, inner)
    target = target.inner if isinstance(target, LibraryTokenizer) else None
    return LibraryTokenizer(inner, special=special, target=target, chat_template=_chat_template(path))


def _marian(path: Path, model: Model, special: SpecialTokens) -> SentencePieceTokenizer:
    """Return Marian's tokenizer, with these special tokens: a source text ends with </s>."""
    source = _vocabulary(path / "vocab.json", model.config.N_V_z or model.config.N_V)
    own = path / "target_vocab.json"
    target = _vocabulary(own, model.config.N_V) if own.is_file() else source
    reads, writes = ((path / f"{side}.spm").read_bytes() for side in ("source", "target"))
    others = tuple(sorted(target[piece] for piece in NOT_TEXT if piece in target))
    special = special._replace(after=(source["</s>"],) if "</s>" in source else (), others=others)
    try:
        return SentencePieceTokenizer(reads, writes, source=source, target=target, special=special)
    except DataError as error:
        raise InterchangeError(f"{path}: {error}") from None


def _vocabulary(path: Path, N_V: int) -> dict[str, int]:
    found = read_json(path)
    for piece, token in found.items():
        if type(token) is not int or not 0 <= token < N_V:
            raise InterchangeError(f"{path}: {piece!r} has the token ID {token!r}, expected an integer below {N_V}")
    return found


def _chat_template(path: Path) -> str | None:
    """Return the chat template; of several, the one named default."""
    file, settings = path / TEMPLATE, path / "tokenizer_config.json"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InterchangeError(f"cannot read {file}: {error}") from None
    found = _in_file(settings).get("chat_template")
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default", next(iter(named.values())) if len(named) == 1 else list(named))
    if not isinstance(found, str | None):
        raise InterchangeError(
            f"{settings}: chat_template: expected a string, or several with one named default, got {str(found)[:60]}"
        )
    return found


class _Named:
    """The special tokens that a checkpoint's files name."""

    def __init__(self, path: Path, fields: Fields, N_V: int, inner: library.Tokenizer | None) -> None:
        self._generation, self._settings = _in_file(path / "generation_config.json"), _settings(path)
        self._fields, self._N_V, self._inner = fields, N_V, inner

    def number(self, name: str) -> Any:
        """Return a field of config.json or generation_config.json; if it is a list, its first element."""
        token = self._fields.get(name, self._generation.get(name))
        return token[0] if isinstance(token, list) and token else token

    def all(self, name: str) -> list[int]:
        """Return all valid token IDs that a field of either file names."""
        found = (self._generation.get(name), self._fields.get(name))
        tokens = [t for several in found for t in (several if isinstance(several, list) else [several])]
        return list(dict.fromkeys(t for t in tokens if type(t) is int and 0 <= t < self._N_V))

    def ends(self) -> list[int]:
        """Return all tokens that any file says to end a text."""
        by_text = self.by_text("eos_token")
        return [*self.all("eos_token_id"), *([] if by_text in (None, *self.all("eos_token_id")) else [by_text])]

    def by_number(self, *names: str) -> int | None:
        """Return the token ID in the first of these fields that has a valid one."""
        tokens = map(self.number, names)
        return next((t for t in tokens if type(t) is int and 0 <= t < self._N_V), None)

    def by_text(self, *names: str) -> int | None:
        """Return the ID of the token in the first of these tokenizer settings that names a known one."""
        if self._inner is None:
            return None
        texts = (_content_of(self._settings.get(name)) for name in names)
        tokens = (self._inner.token_to_id(text) for text in texts if isinstance(text, str))
        return next((token for token in tokens if token is not None), None)


def special_tokens(path: Path, fields: Fields, model: Model, inner: library.Tokenizer | None) -> SpecialTokens:
    """Return the special tokens of a checkpoint, from its files and, if given, its tokenizer."""
    named = _Named(path, fields, model.config.N_V, inner)
    bos, eos = _ends(named, model.task)
    before, after = _frame(inner) if inner else ([], [])
    if model.task != "d" and not before + after and inner and bos is not None and eos is not None:
        before, after = ([bos] if model.task != "ed" else []), [eos]
    others = {i for i, token in inner.get_added_tokens_decoder().items() if token.special} if inner else set()
    padding = named.by_number("pad_token_id") if inner else None
    if padding is not None:
        others.add(padding)
    return SpecialTokens(
        model.config.N_V,
        named.by_number("mask_token_id") if (mask := named.by_text("mask_token")) is None else mask,
        bos,
        eos,
        tuple(before),
        tuple(after),
        tuple(sorted(others)),
        tuple(token for token in named.ends() if token != eos),
    )


def _ends(named: _Named, task: str) -> tuple[int | None, int | None]:
    """Return bos and eos; one serves as both if the files do not name the other, not even with an invalid ID."""
    if task in ("e", "classify"):
        bos, eos = named.by_text("cls_token", "bos_token"), named.by_text("sep_token", "eos_token")
        return (eos if bos is None else bos), (bos if eos is None else eos)
    starts = ("decoder_start_token_id", "bos_token_id") if task == "ed" else ("bos_token_id",)
    bos, eos = named.by_number(*starts), named.by_number("eos_token_id")
    bos = named.by_text("bos_token") if bos is None else bos
    eos = named.by_text("eos_token") if eos is None else eos
    if bos is None and named.number("bos_token_id") is None:
        bos = eos
    if eos is None and named.number("eos_token_id") is None:
        eos = bos
    return bos, eos


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings in the files beside a tokenizer; for a vocab.txt, BERT's special tokens are the defaults."""
    found: dict[str, Any] = {}
    if (path / "vocab.txt").is_file():
        found = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        found |= {k: v for k, v in _in_file(path / name).items() if v is not None}
    return found


def _in_file(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, which may be missing."""
    return read_json(path) if path.is_file() else {}


def _frame(inner: library.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer adds before and after a text."""
    for text in ("a", "A", "1", *list(inner.get_vocab())[:9]):
        try:
            plain = inner.encode(text)
        except Exception:  # the library's, of a vocabulary without these characters
            continue
        if plain.ids:
            break
    else:
        return [], []
    inside = [i for i, special in enumerate(plain.special_tokens_mask) if not special]
    return (plain.ids[: inside[0]], plain.ids[inside[-1] + 1 :]) if inside else ([], [])


def _apply_config(path: Path, inner: library.Tokenizer, model_type: str, N_V: int) -> None:
    """Change the tokenizer of a model with N_V tokens as the files beside it specify. Raises InterchangeError if an
    added token would get another ID than specified.
    """
    named = path / "tokenizer_config.json"
    settings = _in_file(named)
    fields = Fields(named, settings)
    kind = str(settings.get("tokenizer_class") or CLASSES.get(model_type, "")).removesuffix("Fast")
    if kind == "BertTokenizer" and named.is_file() and isinstance(inner.model, models.WordPiece):
        inner.normalizer = normalizers.BertNormalizer(
            lowercase=fields.flag("do_lower_case", True),
            strip_accents=None if fields.get("strip_accents") is None else fields.flag("strip_accents", False),
            handle_chinese_chars=fields.flag("tokenize_chinese_chars", True),
        )
    if kind in BYTE_LEVEL and named.is_file() and isinstance(inner.model, models.BPE):
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=fields.flag("add_prefix_space", False))
    _add_tokens(path, inner, settings)
    _add_special(path, inner, N_V)
    if not (path / "tokenizer.json").is_file():  # which would say which tokens frame a text
        _add_frame(inner, settings, kind)


def _add_tokens(path: Path, inner: library.Tokenizer, settings: dict[str, Any]) -> None:
    """Add the tokens that the other files name but tokenizer.json does not."""
    file = path / "added_tokens.json"
    named = {_id(file, token): library.AddedToken(text, normalized=True) for text, token in _in_file(file).items()}
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


def _add_special(path: Path, inner: library.Tokenizer, N_V: int) -> None:
    """Add the special tokens that only the settings name, as transformers does; those for which a model with N_V tokens
    has no embedding remain text.
    """
    settings = _settings(path)
    more = settings.get("extra_special_tokens", settings.get("additional_special_tokens")) or []
    named = [settings.get(f"{name}_token") for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    known = {token.content for token in inner.get_added_tokens_decoder().values()}
    for token in [*named, *(more.values() if isinstance(more, dict) else more)]:
        content, others = _content_of(token), token if isinstance(token, dict) else {}
        if not isinstance(content, str) or not content or content in known:
            continue
        if inner.token_to_id(content) is not None or inner.get_vocab_size(with_added_tokens=True) < N_V:
            sides = {name: bool(others.get(name)) for name in ("lstrip", "rstrip", "single_word")}
            inner.add_special_tokens([library.AddedToken(content, special=True, normalized=False, **sides)])


def _id(path: Path, token: Any) -> int:
    try:
        return int(token)
    except (TypeError, ValueError):
        raise InterchangeError(f"{path}: expected a token ID, got {token!r}") from None


def _add_frame(inner: library.Tokenizer, settings: dict[str, Any], kind: str) -> None:
    """Make the tokenizer add the tokens before and after a text that its class or its settings specify."""
    if "add_bos_token" in settings or "add_eos_token" in settings:
        default = END_OF_TEXT if kind == "GPT2Tokenizer" else None
        tokens = {name: _content_of(settings.get(f"{name}_token", default)) for name in ("bos", "eos")}
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


def _content_of(token: Any) -> Any:
    """Return the text of a special token, which settings give as a string or as an object with fields."""
    return token.get("content") if isinstance(token, dict) else token


def write(path: Path, tokenizer: Tokenizer, model: Model) -> dict[str, Any]:
    """Write our tokenizer in transformers' files, and return the fields of config.json on special tokens. Raises
    InterchangeError if its special tokens would not get the IDs that the model has for them.
    """
    special = special_of(tokenizer, model)
    ends = [special.eos, *special.ends] if special.ends else special.eos
    fields: dict[str, Any] = {"bos_token_id": special.bos, "eos_token_id": ends}
    if model.task == "e" and special.mask is not None:
        fields["mask_token_id"] = special.mask
    if model.task == "ed":
        fields |= {"decoder_start_token_id": special.bos, "forced_eos_token_id": None}
    if isinstance(tokenizer, NumberTokenizer):
        return fields
    if isinstance(tokenizer, SentencePieceTokenizer):
        _write_marian(path, tokenizer)
        return fields
    inner, special = in_library(tokenizer, model)
    (path / "tokenizer.json").write_text(inner.to_str(pretty=True), "utf-8")
    if isinstance(tokenizer, LibraryTokenizer) and tokenizer.target:
        (path / TARGET).write_text(tokenizer.target.to_str(pretty=True), "utf-8")
    if tokenizer.chat_template is not None:
        (path / TEMPLATE).write_text(tokenizer.chat_template, "utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.l_max,
        "clean_up_tokenization_spaces": False,
    }
    names = {"mask_token": special.mask, "bos_token": special.bos, "eos_token": special.eos}
    if model.task in ("e", "classify"):
        names |= {"cls_token": special.bos, "sep_token": special.eos}
    settings |= {name: inner.id_to_token(token) for name, token in names.items() if token is not None}
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return fields


def _write_marian(path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Write a tokenizer in transformers' files."""
    for side, model in zip(("source", "target"), tokenizer.models, strict=True):
        (path / f"{side}.spm").write_bytes(model)
    separate = tokenizer.source != tokenizer.target
    vocabularies = {"vocab.json": tokenizer.source} | ({"target_vocab.json": tokenizer.target} if separate else {})
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    for name, content in {**vocabularies, "tokenizer_config.json": settings}.items():
        (path / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def in_library(tokenizer: Tokenizer, model: Model) -> tuple[library.Tokenizer, SpecialTokens]:
    """Return the same tokenizer as one of the library `tokenizers`, and the model's special tokens. Raises
    InterchangeError as `write`.
    """
    inner, special = _as_library_tokenizer(tokenizer), special_of(tokenizer, model)
    if not tokenizer.special:
        _add_paper_tokens(inner, special)
    return inner, special


def special_of(tokenizer: Tokenizer, model: Model) -> SpecialTokens:
    """Return the special tokens of a model with this tokenizer; without its own, they are the paper's."""
    if tokenizer.special:
        return tokenizer.special
    mask, bos, eos = tokenizer.mask_token, tokenizer.bos_token, tokenizer.eos_token
    return SpecialTokens(tokenizer.N_V, mask, bos, eos, (bos,), () if model.task == "d" else (eos,))


def _add_paper_tokens(inner: library.Tokenizer, special: SpecialTokens) -> None:
    """Add mask, bos and eos at the end of the vocabulary, and put bos and eos around a text."""
    known = inner.get_vocab(with_added_tokens=True)
    names = {name: next(n for n in (f"<{name}>", f"<{name}_token>", f"<|{name}|>") if n not in known) for name in NAMES}
    inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in names.values()])
    for name, text in names.items():
        if inner.token_to_id(text) != special.token(name):
            raise InterchangeError(
                f"the tokenizer has {inner.token_to_id(text)} tokens before its {name} token, but the model expects "
                f"{special.token(name)}; give the tokenizer that the model was trained with"
            )
    frame = f"{names['bos']} $A" + (f" {names['eos']}" if special.after else "")
    inner.post_processor = processors.TemplateProcessing(
        single=frame, special_tokens=[(names[n], special.token(n)) for n in ("bos", "eos")]
    )


def _as_library_tokenizer(tokenizer: Tokenizer) -> library.Tokenizer:
    """Return the same tokenizer as one of the library `tokenizers`."""
    if isinstance(tokenizer, LibraryTokenizer):
        return library.Tokenizer.from_str(tokenizer.inner.to_str())
    if isinstance(tokenizer, tokenizers.ByteTokenizer):
        vocabulary = {character: byte for byte, character in enumerate(tokenizers.byte_characters())}
        inner = library.Tokenizer(models.BPE(vocabulary, merges=[]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        return inner
    if isinstance(tokenizer, tokenizers.CharacterTokenizer | tokenizers.WordTokenizer):
        vocabulary = {text: i for i, text in enumerate(tokenizer.vocabulary)}
        of_words = isinstance(tokenizer, tokenizers.WordTokenizer)
        inner = library.Tokenizer(models.WordLevel(vocabulary, unk_token=tokenizers.UNKNOWN if of_words else ""))
        pattern = tokenizers.WORD.pattern if of_words else r"(?m)."  # m lets . match any character in this library
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
        inner.decoder = decoders.Fuse()
        return inner
    raise InterchangeError(f"a {type(tokenizer).__name__} cannot be written for other libraries")
