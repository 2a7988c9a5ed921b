"""What requests for completions and for chat share: how much to generate, how it is drawn, and where it ends."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from training.generation import Sampling
from training.generation.inputs import check_sampling
from training.generation.prompts import Prompt
from training.serving.engine import Step
from training.serving.errors import RequestError
from training.serving.fields import boolean, integer, number
from training.serving.served import Served

FIELDS = (
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "stop",
    "seed",
    "user",
)
"""Fields that both have: OpenAI's, and three as vLLM has them."""
MOST_STOPS, LARGEST_SEED = 4, 2**32 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be generated: of each prompt n."""

    prompts: list[Prompt]  # what is continued
    n: int  # continuations of each
    l_gen: int  # most tokens of each, or 0 for none at all
    sampling: Sampling  # how they are drawn
    stop: tuple[str, ...]  # texts before which they end
    seed: int | None  # decides what is drawn; None: each time something else
    stream: bool  # whether to answer piece by piece
    include_usage: bool  # whether a stream ends with how many tokens there were


def wishes(body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """Return the fields of `Asked` but its prompts and l_gen, or raise RequestError if one is not what it should be."""
    stream = boolean(body, "stream")
    return {
        "n": integer(body, "n", 1, least=1, most=served.limits.choices),
        "sampling": _sampling(body, served),
        "stop": _stops(body.get("stop")),
        "seed": None if body.get("seed") is None else integer(body, "seed", 0, least=0, most=LARGEST_SEED),
        "stream": stream,
        "include_usage": _stream_options(body),
    }


def _stream_options(body: Mapping[str, Any]) -> bool:
    """Return whether a stream is to end with how many tokens there were. Raises RequestError if there are other
    options.
    """
    options = {} if body.get("stream_options") is None else body["stream_options"]
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise RequestError("stream_options: expected an object with include_usage", parameter="stream_options")
    boolean(options, "include_obfuscation")  # padding against who listens: there is none to add
    return boolean(options, "include_usage")


def _sampling(body: Mapping[str, Any], served: Served) -> Sampling:
    N_V = served.tokenizer.N_V
    top_k = body.get("top_k")
    sampling: Sampling = {
        "tau": number(body, "temperature", 1.0),
        "top_k": None if top_k in (None, 0, -1) else integer(body, "top_k", 1, least=1, most=N_V),
        "top_p": None if body.get("top_p") in (None, 1) else number(body, "top_p", 1.0),
        "eos": served.ends or None,
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
    """Return the biases of tokens, whose IDs are the names of JSON's object."""
    if biases is None:
        return None
    if not isinstance(biases, dict):
        raise RequestError("logit_bias: expected an object of token IDs and numbers", parameter="logit_bias")
    for token in biases:
        if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) < N_V):
            message = f"logit_bias: expected token IDs from 0 to {N_V - 1}, got {token!r}"
            raise RequestError(message, parameter="logit_bias")
    return {int(token): number(biases, token, 0.0) for token in biases}


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise RequestError(f"stop: expected a text or at most {MOST_STOPS}, none of them empty", parameter="stop")
    return tuple(stops)


def token_list(value: Any, N_V: int) -> list[int] | None:
    """Return a value that is a list of tokens, at least one; None where it is anything else."""
    tokens = isinstance(value, list) and value and all(type(v) is int and 0 <= v < N_V for v in value)
    return value if tokens else None


def usage(prompts: Sequence[Prompt], generated: int) -> dict[str, int]:
    """Return how many tokens were read and generated."""
    read = sum(len(prompt.tokens) for prompt in prompts)
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


def text_of(steps: Sequence[Step]) -> str:
    """Return the text of steps."""
    return "".join(step.text for step in steps)
