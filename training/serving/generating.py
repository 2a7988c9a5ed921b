"""What requests for completions and chat share: how much to generate, how to draw it, and where it ends."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from training.generation import Sampling
from training.generation.inputs import check_sampling
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
    stop: tuple[str, ...]  # texts before which they end
    seed: int | None  # of the random draws; None: a random seed
    stream: bool  # whether to answer piece by piece
    include_usage: bool  # whether a stream ends with the token counts


def common_fields(body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """Return the fields of `Asked` except prompts and l_gen. Raises RequestError if one is invalid."""
    return {
        "stream": boolean(body, "stream"),
        "n": integer(body, "n", 1, least=1, most=served.limits.choices),
        "sampling": _sampling(body, served),
        "stop": _stops(body.get("stop")),
        "seed": None if body.get("seed") is None else integer(body, "seed", 0, least=0, most=LARGEST_SEED),
        "include_usage": _stream_options(body),
    }


def _stream_options(body: Mapping[str, Any]) -> bool:
    """Return whether a stream ends with the token counts. Raises RequestError for unknown options."""
    options = {} if body.get("stream_options") is None else body["stream_options"]
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise invalid("stream_options", "expected an object with include_usage")
    boolean(options, "include_obfuscation")  # random padding, which this server never adds
    return boolean(options, "include_usage")


def _sampling(body: Mapping[str, Any], served: Served) -> Sampling:
    N_V = served.tokenizer.N_V
    top_k = body.get("top_k")
    sampling: Sampling = {
        "tau": number(body, "temperature", 1.0),
        "top_k": None if top_k in (None, 0, -1) else integer(body, "top_k", 1, least=1, most=N_V),
        "top_p": None if body.get("top_p") in (None, 1) else number(body, "top_p", 1.0),
        "eos": served.tokenizer.end_tokens or None,
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
    return {int(token): number(biases, token, 0.0) for token in biases}


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
