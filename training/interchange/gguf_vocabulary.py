"""Write a tokenizer as the metadata of a GGUF file, by the tables that `gguf_tokenizer` reads it with.

What GGUF cannot say of it is found by reading the metadata back.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers as library

from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import LibraryTokenizer, NumberTokenizer, Tokenizer
from training.interchange import gguf_tokenizer, tokenizer_files
from training.interchange.description import Model
from training.interchange.errors import InterchangeError
from training.interchange.gguf_tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, WORDS

ENDS = ("eos", "eot", "eom")


def metadata_of(path: Path, tokenizer: Tokenizer, model: Model, architecture: str) -> dict[str, Any]:
    """Return the metadata on the tokenizer of a model. Raises InterchangeError if GGUF cannot express it."""
    if isinstance(tokenizer, NumberTokenizer):
        return {"tokenizer.ggml.model": "no_vocab", **_special(tokenizer_files.special_of(tokenizer, model))}
    inner, special = tokenizer_files.in_library(tokenizer, model)
    state = json.loads(inner.to_str())
    if state["model"]["type"] != "BPE":
        raise InterchangeError(f"GGUF has no tokenizers of the kind {state['model']['type']}; write another format")
    found = {f"tokenizer.{key}": value for key, value in _vocabulary(inner, state, special.N_V).items()}
    found |= _special(special)
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    lacks = []
    for more in _ways_to_split(state, found):
        read = gguf_tokenizer.read(path, {"general.architecture": architecture, **found, **more}, special.N_V)
        assert isinstance(read, LibraryTokenizer)
        assert read.special
        lacks = _differences(state, json.loads(read.inner.to_str()))
        lacks += [n for n in special._fields if n != "others" and getattr(special, n) != getattr(read.special, n)]
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
        return found | ({"ggml.merges": [" ".join(merge) for merge in merges]} if merges else {})
    rank = {}
    for i, (first, second) in enumerate(merges):
        rank.setdefault(first + second, i)
    for i, token in enumerate(tokens):
        is_byte = len(token) == 6 and token.startswith("<0x") and types[i] == NORMAL
        types[i] = BYTE if is_byte else UNKNOWN if token == model["unk_token"] else types[i]
    # in front of all others, so that no pair forms them: tokens that merges do not form
    scores = [-float(rank.get(token, len(merges))) for token in tokens]
    return {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.token_type": types, "ggml.scores": scores}


def _special(special: SpecialTokens) -> dict[str, Any]:
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
    ours = [_step(step) for part in ("normalizer", "pre_tokenizer") for step in _steps(state[part])]
    distinct = {words: name for name, words in reversed(WORDS.items())}
    alike = [name for words, name in distinct.items() if [_step(s) for s in gguf_tokenizer.steps_of(words)] == ours]
    return [{"tokenizer.ggml.pre": name} for name in alike or ["gpt-2"]]


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return what differs between two tokenizers of the library, as the fields of tokenizer.json name it."""
    merges = bool(ours["model"]["merges"])  # without any, it does not matter how text is split
    parts = ["normalizer", *(["pre_tokenizer"] if merges else [])]
    found = [p for p in parts if [*map(_step, _steps(ours[p]))] != [*map(_step, _steps(theirs[p]))]]
    if merges:
        found += [n for n in ("ignore_merges", "byte_fallback") if ours["model"][n] != theirs["model"][n]]
    found += ["merges"] if _by_result(ours["model"]["merges"]) != _by_result(theirs["model"]["merges"]) else []
    return found + (["added_tokens"] if _added(ours) != _added(theirs) else [])


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers"))
    return [part] if inner is None else [step for one in inner for step in _steps(one)]


def _step(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step without what has no effect on token IDs."""
    return {name: value for name, value in step.items() if name not in ("trim_offsets", "invert") or value is True}


def _by_result(merges: list[Any]) -> list[tuple[str, set[tuple[str, ...]]]]:
    """Return the results of merges in their order, each with the pairs that form it one after another."""
    found: list[tuple[str, set[tuple[str, ...]]]] = []
    for merge in merges:
        pair = tuple(merge.split(" ") if isinstance(merge, str) else merge)
        if not found or found[-1][0] != "".join(pair):
            found.append(("".join(pair), set()))
        found[-1][1].add(pair)
    return found


def _added(state: dict[str, Any]) -> set[tuple[Any, ...]]:
    names = ("id", "content", "special", "lstrip", "rstrip", "single_word")
    return {tuple(token[name] for name in names) for token in state["added_tokens"]}
