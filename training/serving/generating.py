"""Generation for completions and chat: lengths, sampling, and stopping."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from training.data.records import hash64
from training.data.tokenizers import Tokenizer
from training.generation import Sampling
from training.generation.grammars import Grammar
from training.generation.inputs import check_sampling
from training.generation.pieces import REPLACEMENT, Ends
from training.generation.requests import Prompt
from training.generation.text import LARGEST_SEED
from training.serving.errors import RequestError, invalid
from training.serving.requests import Generation
from training.serving.served import ServedModel


class GenerationPlan(NamedTuple):
    """The continuations to generate: n for each prompt."""

    prompts: list[Prompt]  # what to continue
    n: int  # continuations of each
    l_gen: int  # most tokens of each; 0 generates nothing
    sampling: Sampling  # how to draw them
    ends: Ends  # what ends them
    seed: int | None  # of the random draws; None: a random seed
    stream: bool  # whether to answer piece by piece
    include_usage: bool  # whether a stream ends with the token counts
    named: Mapping[int, str] = MappingProxyType({})  # special tokens that their texts name
    grammar: Grammar | None = None  # what each follows, if not any text will do


def common_fields(request: Generation, served: ServedModel) -> dict[str, Any]:
    """Return the fields of `GenerationPlan` except prompts and l_gen. Raises RequestError if one is invalid."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    ends = Ends.of(served.tokenizer, tuple(stops), served.ends)
    return {
        "stream": request.stream,
        "n": request.n,
        "sampling": _sampling(request, served.tokenizer.N_V, ends),
        "ends": ends,
        "seed": _seed(request.seed),
        "include_usage": request.stream_options.include_usage,
    }


def _seed(seed: int | None) -> int | None:
    """Return the seed; None for a random one, as for −1. Of OpenAI's 64 bits, all count."""
    if seed in (None, -1):
        return None
    return hash64(str(seed)) >> 32 if seed > LARGEST_SEED or seed < 0 else seed


def _sampling(request: Generation, N_V: int, ends: Ends) -> Sampling:
    sampling: Sampling = {
        "tau": request.temperature,
        "top_k": request.top_k if request.top_k > 0 else None,
        "top_p": None if request.top_p == 1 else request.top_p,
        "eos": ends.tokens or None,
        "repetition_penalty": request.repetition_penalty,
        "no_repeat_ngram_size": request.no_repeat_ngram_size,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "logit_bias": _biases(request.logit_bias, N_V),
    }
    try:
        check_sampling(sampling, N_V)
    except ValueError as wrong:
        raise RequestError(str(wrong).replace("tau:", "temperature:", 1)) from None
    return sampling


def _biases(biases: Mapping[str, float] | None, N_V: int) -> dict[int, float] | None:
    """Return the biases by token ID; in JSON, the IDs are strings."""
    if biases is None:
        return None
    for token in biases:
        if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) < N_V):
            raise invalid("logit_bias", f"expected token IDs from 0 to {N_V - 1}, got {token!r}")
    return {int(token): bias for token, bias in biases.items()}


def shown(tokenizer: Tokenizer, token: int, *, begins: bool = False) -> tuple[str | None, bytes]:
    """Return the text of a token, which may begin a text, and its bytes; None for part of a character."""
    if begins and not tokenizer.is_special(token) and REPLACEMENT not in (text := tokenizer.decode([token])):
        return text, text.encode()
    spelled = tokenizer.spelled(token)
    try:
        return spelled.decode(), spelled
    except UnicodeDecodeError:
        return None, spelled


def escaped(spelled: bytes) -> str:
    """Return bytes as OpenAI's API writes a token that is part of a character."""
    return "".join(f"\\x{byte:02x}" for byte in spelled)
