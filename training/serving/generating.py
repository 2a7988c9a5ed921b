"""What requests for completions and chat share: how much to generate, how to draw it, and where it ends."""

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
from training.serving.fields import RequestError, boolean, integer, invalid, number
from training.serving.served import Served

FIELDS = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "no_repeat_ngram_size",
    "frequency_penalty", "presence_penalty", "logit_bias", "n", "stream", "stream_options", "logprobs", "stop", "seed",
    "user",
)  # fmt: skip
"""Fields of both: OpenAI's, and three of vLLM's."""
MOST_STOPS = 4


class Asked(NamedTuple):
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


def common_fields(body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """Return the fields of `Asked` except prompts and l_gen. Raises RequestError if one is invalid."""
    ends = Ends.of(served.tokenizer, _stops(body.get("stop")), served.ends)
    return {
        "stream": boolean(body, "stream"),
        "n": integer(body, "n", 1, least=1, most=served.limits.choices),
        "sampling": _sampling(body, served, ends),
        "ends": ends,
        "seed": _seed(body),
        "include_usage": _stream_options(body),
    }


def _seed(body: Mapping[str, Any]) -> int | None:
    """Return the seed; None for a random one, as for −1. Of OpenAI's 64 bits, all count."""
    seed = -1 if body.get("seed") is None else integer(body, "seed", 0, least=-(2**63), most=2**63 - 1)
    return None if seed == -1 else hash64(str(seed)) >> 32 if seed > LARGEST_SEED or seed < 0 else seed


def _stream_options(body: Mapping[str, Any]) -> bool:
    """Return whether a stream ends with the token counts. Raises RequestError for unknown options."""
    options = {} if body.get("stream_options") is None else body["stream_options"]
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise invalid("stream_options", "expected an object with include_usage")
    boolean(options, "include_obfuscation")  # random padding, which this server never adds
    return boolean(options, "include_usage")


def _sampling(body: Mapping[str, Any], served: Served, ends: Ends) -> Sampling:
    N_V = served.tokenizer.N_V
    top_k = body.get("top_k")
    sampling: Sampling = {
        "tau": number(body, "temperature", 1.0),
        "top_k": None if top_k in (None, 0, -1) else integer(body, "top_k", 1, least=1, most=N_V),
        "top_p": None if body.get("top_p") in (None, 1) else number(body, "top_p", 1.0),
        "eos": ends.tokens or None,
        "repetition_penalty": number(body, "repetition_penalty", 1.0),
        "no_repeat_ngram_size": integer(body, "no_repeat_ngram_size", 0, least=0, most=1 << 16),
        "frequency_penalty": number(body, "frequency_penalty", 0.0),
        "presence_penalty": number(body, "presence_penalty", 0.0),
        "logit_bias": _biases(body.get("logit_bias"), N_V),
    }
    try:
        check_sampling(sampling, N_V)
    except ValueError as wrong:
        raise RequestError(str(wrong).replace("tau:", "temperature:", 1)) from None
    return sampling


def _biases(biases: Any, N_V: int) -> dict[int, float] | None:
    """Return the biases by token ID; in JSON, the IDs are strings."""
    if biases is None:
        return None
    if not isinstance(biases, dict):
        raise invalid("logit_bias", "expected an object of token IDs and numbers")
    for token in biases:
        if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) < N_V):
            raise invalid("logit_bias", f"expected token IDs from 0 to {N_V - 1}, got {token!r}")
    return {int(token): number({"logit_bias": bias}, "logit_bias", 0.0) for token, bias in biases.items()}


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise invalid("stop", f"expected a text or at most {MOST_STOPS}, none of them empty")
    return tuple(stops)


def listed(given: Any) -> list[Any]:
    """Return several texts or lists of tokens unchanged, and anything else as a list of one."""
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    return given if several else [given]


def token_list(value: Any, N_V: int) -> list[int] | None:
    """Return a nonempty list of tokens unchanged, and None for anything else."""
    tokens = isinstance(value, list) and value and all(type(v) is int and 0 <= v < N_V for v in value)
    return value if tokens else None


def not_text(name: str, N_V: int) -> RequestError:
    """Return the error for a field that is neither text nor tokens."""
    return invalid(name, f"expected a text, tokens from 0 to {N_V - 1}, or a list of these, none of them empty")


def shown(tokenizer: Tokenizer, token: int, *, begins: bool = False) -> tuple[str | None, bytes]:
    """Return the text of a token, which may begin a text, and its bytes; None for part of a character."""
    if begins and token not in tokenizer.special_tokens and REPLACEMENT not in (text := tokenizer.decode([token])):
        return text, text.encode()
    spelled = tokenizer.spelled(token)
    try:
        return spelled.decode(), spelled
    except UnicodeDecodeError:
        return None, spelled


def escaped(spelled: bytes) -> str:
    r"""Return bytes as OpenAI's API writes a token that is part of a character.

    Example:
        >>> print(escaped("…".encode()))
        \xe2\x80\xa6
    """
    return "".join(f"\\x{byte:02x}" for byte in spelled)
