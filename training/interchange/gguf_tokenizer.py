"""Read the tokenizer of a GGUF file as one of the library `tokenizers`, with its special tokens and chat template, and
write one as a file's metadata.

Where `transformers` reads the file differently from the model's original tokenizer (which may split digits, normalize,
or insert a space after every special token), this module follows the original, as llama.cpp does. What GGUF cannot say
of a tokenizer is found by reading the metadata back.
"""

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers as library
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import LibraryTokenizer, NumberTokenizer, Tokenizer
from training.extras import install
from training.interchange import tokenizer_files
from training.interchange.description import Model
from training.interchange.errors import InterchangeError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
LONGEST_TOKEN = 1 << 12
NEVER = "ĠĠ ĠĠ"
"""The only merge of a vocabulary of bytes, which joins none of them: llama.cpp opens no file without merges."""
ENDS = ("eos", "eot", "eom")
ENDS_BY_TEXT = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
)  # fmt: skip
"""Tokens that end a text by what they are called, as for llama.cpp, since many files name only one by its ID."""

SENTENCEPIECE = "tokenizer.model"
SAMPLES = (
    "The quick brown fox jumps over the lazy dog, 1234 times.",
    "  two spaces, a\ttab and\na line; café, naïve, Привет, 你好, 🎉 <s> ▁x",
    "def f(x):\n    return x ** 2  # comment",
)
"""Texts on which the library's tokenizer has to agree with SentencePiece's own."""

_BEFORE, _CONTRACTIONS = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    (
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
)


def _by_case(others: str, suffix: str, rest: str) -> str:
    """Return the pattern of words that begin anew at a capital; of letters without `others`, and with a suffix."""
    upper, lower = (rf"[{a}\p{{Lm}}\p{{Lo}}\p{{M}}{others}]" for a in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
    return rf"{_BEFORE}{upper}*{lower}+{suffix}|{_BEFORE}{upper}+{lower}*{suffix}|\p{{N}}{rest}"


_WITH_PATHS = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_TEKKEN = _by_case("", "", f"|{_WITH_PATHS}")
_GPT_4O = _by_case("", f"{_CONTRACTIONS}?", f"{{1,3}}|{_WITH_PATHS}")
_KIMI = r"\p{Han}+|" + _by_case(r"&&[^\p{Han}]", f"{_CONTRACTIONS}?", f"{{1,3}}|{_REST}")


class Words(NamedTuple):
    """A byte-level tokenizer's rule for splitting text into words before merging."""

    patterns: tuple[str, ...] = ()  # match words, one after another in what those before left; none: GPT-2's
    digits: bool = False  # whether each digit is split off first, as a word
    normalized: bool = False  # whether text is first normalized to Unicode's form NFC
    whole: bool = False  # whether a word that is a token skips the merges
    begins: bool = False  # whether a text begins with bos, unless the file says otherwise


WORDS: dict[str, Words] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe"), Words()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), Words(digits=True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), Words((_LLAMA3,), whole=True, begins=True)
    ),
    **dict.fromkeys(("glm4", "chatglm-bpe", "dbrx", "smaug-bpe"), Words((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), Words((_QWEN2,), normalized=True)),
    "qwen35": Words((_QWEN35,), normalized=True),
    "deepseek-v3": Words(_DEEPSEEK3),
    "tekken": Words((_TEKKEN,), whole=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Words((_GPT_4O,))),
    "kimi-k2": Words((_KIMI,)),
}
"""By tokenizer.ggml.pre."""


class _Fields:
    """A file's metadata on its tokenizer."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self.path, self._metadata = path, metadata
        self.architecture = str(metadata.get("general.architecture"))

    def get(self, name: str, kind: type, default: Any) -> Any:
        """Return a value of a type."""
        value = self._metadata.get(f"tokenizer.{name}", default)
        if value is not default and (not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)):
            raise self.wrong(name, f"expected a value of the type {kind.__name__}, got {str(value)[:60]}")
        return value

    def items(self, name: str, kind: type, count: int | None = None) -> list[Any]:
        """Return a list of values of a type, `count` of them if given."""
        values = self.get(f"ggml.{name}", list, [])
        if not all(isinstance(value, kind) for value in values) or (count is not None and len(values) != count):
            number = "" if count is None else f"{count} "
            raise self.wrong(f"ggml.{name}", f"expected {number}values of the type {kind.__name__}, got {len(values)}")
        return values

    def wrong(self, name: str, reason: str) -> InterchangeError:
        """Return the error about a value."""
        return InterchangeError(f"{self.path}: tokenizer.{name}: {reason}; download the file again")


def read(path: Path, metadata: dict[str, Any], N_V: int) -> LibraryTokenizer | None:
    """Return the tokenizer in the metadata of a model with N_V tokens, or None if there is none. Raises
    InterchangeError if it is damaged, of an unsupported kind, or has more tokens than the model.
    """
    fields = _Fields(path, metadata)
    kind = fields.get("ggml.model", str, None)
    if kind in (None, "no_vocab"):
        return None
    if kind not in ("gpt2", "llama", "gemma4"):
        raise InterchangeError(
            f"{path}: tokenizer.ggml.model: expected gpt2 (bytes), llama or gemma4 (SentencePiece), got {kind[:60]!r}"
        )
    tokens = fields.items("tokens", str)
    if not 0 < len(tokens) <= N_V or len(set(tokens)) < len(tokens) or max(map(len, tokens)) > LONGEST_TOKEN:
        raise fields.wrong("ggml.tokens", f"expected up to N_V = {N_V} different short strings, got {len(tokens)}")
    types = fields.items("token_type", int, len(tokens)) if "tokenizer.ggml.token_type" in metadata else []
    types = types or [NORMAL] * len(tokens)
    used = next((i for i in range(len(tokens), 0, -1) if types[i - 1] != UNUSED), 0)
    tokens, types = tokens[:used], types[:used]
    try:
        inner, begins = (_byte_level if kind == "gpt2" else _sentencepiece)(fields, tokens, types)
        _add(inner, tokens, types)
    except InterchangeError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise fields.wrong("ggml.tokens", f"no tokenizer can be built ({str(error)[:200]})") from None
    special = _special(fields, tokens, types, N_V, begins=begins)
    frame = [*(tokens[i] for i in special.before), "$A", *(tokens[i] for i in special.after)]
    if len(frame) > 1:
        names = [(tokens[i], i) for i in {*special.before, *special.after}]
        inner.post_processor = processors.TemplateProcessing(single=frame, special_tokens=names)
    return LibraryTokenizer(inner, special=special, chat_template=fields.get("chat_template", str, None))


def read_pieces(path: Path, N_V: int) -> LibraryTokenizer | None:
    """Return the tokenizer of a model with N_V tokens, from the SentencePiece model beside a checkpoint that has no
    tokenizer.json; None if there is no such file. Raises InterchangeError without the package (of the extra
    ``translation``), or if it is of another kind than byte pair encoding, or has more tokens than the model.
    """
    file = path / SENTENCEPIECE
    if not file.is_file():
        return None
    try:
        processor = importlib.import_module("sentencepiece").SentencePieceProcessor(model_proto=file.read_bytes())
    except ModuleNotFoundError:
        raise InterchangeError(f"{file}: reading it needs sentencepiece: {install('translation')}") from None
    except (OSError, RuntimeError) as error:
        raise InterchangeError(f"{file}: expected a SentencePiece model ({str(error)[:80]})") from None
    found = read(file, _of_sentencepiece(processor), N_V)
    assert found
    for text in SAMPLES:
        if found.encode(text) != processor.encode(text):
            raise InterchangeError(
                f"{file}: expected byte pair encoding of SentencePiece's usual kind, got one that splits "
                f"{text[:20]!r}… in another way; add the model's tokenizer.json"
            )
    return found


def _of_sentencepiece(model: Any) -> dict[str, Any]:
    """Return what a GGUF file says of a SentencePiece model."""
    n = model.get_piece_size()
    kinds = (
        (model.is_unknown, UNKNOWN),
        (model.is_control, CONTROL),
        (model.is_unused, UNUSED),
        (model.is_byte, BYTE),
    )
    named = {"bos": model.bos_id(), "eos": model.eos_id()}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(n)],
        "tokenizer.ggml.scores": [float(model.get_score(i)) for i in range(n)],
        "tokenizer.ggml.token_type": [next((kind for of, kind in kinds if of(i)), NORMAL) for i in range(n)],
        "tokenizer.ggml.add_space_prefix": model.encode("a", out_type=str)[0].startswith("▁"),
        **{f"tokenizer.ggml.{name}_token_id": token for name, token in named.items() if token >= 0},
    }


def _byte_level(fields: _Fields, tokens: list[str], types: list[int]) -> tuple[library.Tokenizer, bool]:
    """Return byte-level BPE, and whether a text begins with bos by default."""
    name = fields.get("ggml.pre", str, "default")
    if name == "default":  # in files from before 2024-05
        name = "qwen2" if fields.architecture.startswith("qwen") else "gpt-2"
    if name not in WORDS:
        raise InterchangeError(
            f"{fields.path}: tokenizer.ggml.pre: expected a supported way to split words, one of "
            f"{', '.join(WORDS)}, got {name[:60]!r}"
        )
    words = WORDS[name]
    merges = _listed(fields)
    if merges == [tuple(NEVER.split(" "))] and merges[0][0] not in tokens:
        merges = []
    vocabulary = {token: i for i, token in enumerate(tokens)}
    inner = library.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=words.whole))
    if words.normalized:
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Sequence(_splits(words))
    inner.decoder = decoders.ByteLevel()
    return inner, words.begins


def _listed(fields: _Fields) -> list[Any]:
    """Return the pairs to merge, as a file lists them."""
    merges = [tuple(merge.split(" ")) for merge in fields.items("merges", str)]
    if any(len(merge) != 2 for merge in merges):
        raise fields.wrong("ggml.merges", "expected two tokens separated by a space")
    return merges


def _splits(words: Words) -> list[Any]:
    """Return the steps that split text into words."""
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns]
    return [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words.patterns)]


def steps_of(words: Words) -> list[dict[str, Any]]:
    """Return the steps that normalize and split text, as tokenizer.json has them."""
    found = [normalizers.NFC()] if words.normalized else []
    return [json.loads(step.__getstate__()) for step in [*found, *_splits(words)]]


def _sentencepiece(fields: _Fields, tokens: list[str], types: list[int]) -> tuple[library.Tokenizer, bool]:
    """Return SentencePiece's BPE, and whether a text begins with bos by default. Gemma 4's files list the merges."""
    merges = _listed(fields) if fields.get("ggml.model", str, None) == "gemma4" else _merges(fields, tokens, types)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    bpe = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback="<0x00>" in vocabulary)
    inner = library.Tokenizer(bpe)
    prefixed = fields.get("ggml.add_space_prefix", bool, not fields.architecture.startswith("gemma"))
    spaces = normalizers.Replace(" ", "▁")
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return inner, True


def _merges(fields: _Fields, tokens: list[str], types: list[int]) -> list[tuple[str, str]]:
    """Return the pairs to merge, best first: all that form an ordinary token, ordered by its score. Raises
    InterchangeError if most have the same: SentencePiece then forms the one further left, as no order of merges does.
    """
    scores = fields.items("scores", float)[: len(tokens)]
    if len(scores) < len(tokens):
        raise fields.wrong("ggml.scores", f"expected {len(tokens)} values of the type float, got {len(scores)}")
    ordinary = {t: (-s, i) for i, (t, kind, s) in enumerate(zip(tokens, types, scores, strict=True)) if kind == NORMAL}
    pairs = [
        (*place, -ordinary[token[:i]][1], token[:i], token[i:])
        for token, place in ordinary.items()
        for i in range(1, len(token))
        if token[:i] in ordinary and token[i:] in ordinary
    ]
    formed = {first + second: score for score, *_, first, second in pairs}
    if len({*formed.values()}) < len(formed) / 2:
        raise InterchangeError(
            f"{fields.path}: tokenizer.ggml.scores: expected a different number for each of the {len(formed)} tokens "
            f"that others form, got {len({*formed.values()})}, as in a file that was made without tokenizer.model; get "
            "a file made with it, or the checkpoint of transformers"
        )
    return [(first, second) for *_, first, second in sorted(pairs)]


def _add(inner: library.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Add the tokens that are matched before a text is split: special and user-defined ones."""
    found = [(t, kind) for t, kind in zip(tokens, types, strict=True) if t]
    special = [AddedToken(t, normalized=False, special=True) for t, kind in found if kind in (UNKNOWN, CONTROL)]
    inner.add_special_tokens(special)
    inner.add_tokens([AddedToken(t, normalized=False) for t, kind in found if kind == USER_DEFINED])


def _special(fields: _Fields, tokens: list[str], types: list[int], N_V: int, *, begins: bool) -> SpecialTokens:
    def of(*names: str) -> tuple[int, ...]:
        found = (fields.get(f"ggml.{name}_token_id", int, None) for name in names)
        return tuple(dict.fromkeys(token for token in found if token is not None and 0 <= token < len(types)))

    bos, eos, ends = of("bos"), of("eos"), of(*ENDS)
    numbers = {token: i for i, token in enumerate(tokens)}
    by_text = [numbers[token] for token in ENDS_BY_TEXT if token in numbers]
    ends = tuple(dict.fromkeys([*ends, *by_text])) if ends else ()
    begins = fields.get("ggml.add_bos_token", bool, begins)
    closes = fields.get("ggml.add_eos_token", bool, False)
    others = {i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)}
    return SpecialTokens(
        N_V,
        mask=next(iter(of("mask")), None),
        bos=next(iter(bos + ends), None),
        eos=next(iter(ends + bos), None),
        before=bos if begins else (),
        after=eos if closes else (),
        others=tuple(sorted(others | {*of("padding"), *ends})),
        ends=ends[1:],
    )


def metadata_of(path: Path, tokenizer: Tokenizer | None, model: Model, architecture: str) -> dict[str, Any]:
    """Return the metadata on the tokenizer of a model. Raises InterchangeError if GGUF cannot express it."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "no_vocab"}
    if isinstance(tokenizer, NumberTokenizer):
        return {"tokenizer.ggml.model": "no_vocab", **_special_metadata(tokenizer_files.special_of(tokenizer, model))}
    inner, special = tokenizer_files.in_library(tokenizer, model)
    state = json.loads(inner.to_str())
    if state["model"]["type"] != "BPE":
        raise InterchangeError(f"GGUF has no tokenizers of the kind {state['model']['type']}; write another format")
    found = {f"tokenizer.{key}": value for key, value in _vocabulary(inner, state, special.N_V).items()}
    found |= _special_metadata(special)
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    lacks = []
    for more in _ways_to_split(state, found):
        again = read(path, {"general.architecture": architecture, **found, **more}, special.N_V)
        assert again
        assert again.special
        theirs = _compared(json.loads(again.inner.to_str()))
        lacks = [name for name, value in _compared(state).items() if value != theirs.get(name)]
        alike = [n for n in special._fields if n not in ("others", "ends")]
        lacks += [n for n in alike if getattr(special, n) != getattr(again.special, n)]
        lacks += ["ends"] if set(special.ends) - set(again.special.ends) else []
        if not lacks:
            return {**found, **more}
    raise InterchangeError(f"GGUF cannot express the tokenizer's {', '.join(lacks)}; write another format")


def _vocabulary(inner: library.Tokenizer, state: dict[str, Any], N_V: int) -> dict[str, Any]:
    """Return the tokens, their types, and what orders the merges."""
    vocabulary, model = inner.get_vocab(with_added_tokens=True), state["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    tokens, types = [f"[PAD{i}]" for i in range(N_V)], [UNUSED] * N_V
    for token, i in vocabulary.items():
        tokens[i], types[i] = token, NORMAL
    for added in state["added_tokens"]:
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if not model["byte_fallback"] and any(step["type"] == "ByteLevel" for step in _steps(state["pre_tokenizer"])):
        found = {"ggml.model": "gpt2", "ggml.tokens": tokens, "ggml.token_type": types}
        return found | {"ggml.merges": [" ".join(merge) for merge in merges] or [NEVER]}
    rank = {}
    for i, (first, second) in enumerate(merges):
        rank.setdefault(first + second, i)
    for i, token in enumerate(tokens):
        is_byte = len(token) == 6 and token.startswith("<0x") and types[i] == NORMAL
        types[i] = BYTE if is_byte else UNKNOWN if token == model["unk_token"] else types[i]
    scores = [-float(rank.get(token, len(merges) + i)) for i, token in enumerate(tokens)]  # different ones
    return {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.token_type": types, "ggml.scores": scores}


def _special_metadata(special: SpecialTokens) -> dict[str, Any]:
    """Return the metadata on special tokens."""
    ends = [*([] if special.eos is None else [special.eos]), *special.ends]
    ids = {"mask": special.mask, "bos": special.bos, **dict(zip(ENDS, ends, strict=False))}
    found: dict[str, Any] = {f"{name}_token_id": token for name, token in ids.items() if token is not None}
    found |= {"add_bos_token": bool(special.before), "add_eos_token": bool(special.after)}
    return {f"tokenizer.ggml.{name}": value for name, value in found.items()}


def _ways_to_split(state: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metadata for each way to split text into words before merging, the likeliest last."""
    if found["tokenizer.ggml.model"] == "llama":
        return [{"tokenizer.ggml.add_space_prefix": prefixed} for prefixed in (True, False)]
    ours = [step for part in ("normalizer", "pre_tokenizer") for step in _steps(state[part])]
    distinct = {words: name for name, words in reversed(WORDS.items())}
    alike = [name for words, name in distinct.items() if [s for one in steps_of(words) for s in _steps(one)] == ours]
    return [{"tokenizer.ggml.pre": name} for name in alike or ["gpt-2"]]


def _compared(state: dict[str, Any]) -> dict[str, Any]:
    """Return what decides token IDs, as the fields of tokenizer.json name it."""
    model, found = state["model"], {"normalizer": _steps(state["normalizer"])}
    if model["merges"]:  # without any, it does not matter how text is split
        found |= {"pre_tokenizer": _steps(state["pre_tokenizer"])}
        found |= {name: model[name] for name in ("ignore_merges", "byte_fallback")}
    names = ("id", "content", "special", "lstrip", "rstrip", "single_word")
    added = {tuple(token[name] for name in names) for token in state["added_tokens"]}
    return {**found, "merges": _by_result(model["merges"]), "added_tokens": added}


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, without what has no effect on token IDs."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers"))
    if inner is not None:
        return [step for one in inner for step in _steps(one)]
    return [{name: value for name, value in part.items() if name not in ("trim_offsets", "invert") or value is True}]


def _by_result(merges: list[Any]) -> list[tuple[str, set[tuple[str, ...]]]]:
    """Return the results of merges in their order, each with the pairs that form it one after another."""
    found: list[tuple[str, set[tuple[str, ...]]]] = []
    for merge in merges:
        pair = tuple(merge.split(" ") if isinstance(merge, str) else merge)
        if not found or found[-1][0] != "".join(pair):
            found.append(("".join(pair), set()))
        found[-1][1].add(pair)
    return found
