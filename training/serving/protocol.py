"""What OpenAI's API for completions asks and answers, as JSON: read, checked, and written.

https://platform.openai.com/docs/api-reference/completions, with ``top_k``, ``repetition_penalty`` and
``no_repeat_ngram_size`` as vLLM has them. What this server does not have is refused, not ignored.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation import Sampling
from training.generation.inputs import check_sampling
from training.generation.prompts import Prompt
from training.serving.engine import Step

__all__ = ["Completion", "Limits", "RequestError", "choice", "completion_of", "envelope", "error", "usage"]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}
"""Parameters of OpenAI's that this server has not, and the values with which they change nothing."""
READ = (
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "stop",
    "seed",
    "user",
)
MOST_STOPS, MOST_LOGPROBS = 4, 5


class RequestError(ValueError):
    """A request cannot be answered as it is.

    Attributes:
        status: of HTTP.
        parameter: which is wrong, or None.
    """

    def __init__(self, message: str, *, status: int = 400, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.parameter = status, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that is taken: bytes of a request, tokens of a continuation, continuations of a request."""

    body: int
    tokens: int
    choices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """A request for completions: of each prompt n."""

    prompts: list[Prompt]
    n: int
    l_gen: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int | None
    logprobs: int | None
    stream: bool
    include_usage: bool


def completion_of(
    body: Any, *, model: str, tokenizer: Tokenizer, N_V: int, read: Callable[[str], Prompt], limits: Limits
) -> Completion:
    """Return what a request asks for.

    Args:
        body: its JSON.
        model: the name of the only model.
        tokenizer: its tokenizer.
        N_V: size of its vocabulary.
        read: makes a prompt of a text.
        limits: the most that is taken.

    Raises:
        RequestError: a parameter is unknown, or not what it should be.
    """
    if not isinstance(body, dict):
        raise RequestError("expected a JSON object")
    check_model(body.get("model"), model)
    for name, value in body.items():
        if name not in READ and name not in NEUTRAL:
            raise RequestError(f"unknown parameter {name!r}; there are {', '.join(READ)}", parameter=name)
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise RequestError(f"{name} is not supported: leave it out", parameter=name)
    n = _integer(body, "n", 1, least=1, most=limits.choices)
    prompts = _prompts(body.get("prompt"), tokenizer, N_V, read)
    if len(prompts) * n > limits.choices:
        message = f"{len(prompts)} prompts with n = {n} are more than the {limits.choices} completions of a request"
        raise RequestError(message, parameter="n")
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict) or stream_options.keys() - {"include_usage"}:
        raise RequestError("stream_options: expected an object with include_usage", parameter="stream_options")
    logprobs = body.get("logprobs")
    return Completion(
        prompts=prompts,
        n=n,
        l_gen=_integer(body, "max_tokens", 16, least=1, most=limits.tokens),
        sampling=_sampling(body, tokenizer.end, N_V),
        stop=_stops(body.get("stop")),
        seed=None if body.get("seed") is None else _integer(body, "seed", 0, least=0, most=2**32 - 1),
        logprobs=None if logprobs is None else _integer(body, "logprobs", 0, least=0, most=MOST_LOGPROBS),
        stream=_boolean(body, "stream"),
        include_usage=_boolean(stream_options, "include_usage"),
    )


def check_model(name: Any, model: str) -> None:
    """Check the name of the model.

    Raises:
        RequestError: it is another one.
    """
    if name != model:
        raise RequestError(f"there is no model {name!r}, only {model!r}", status=404, parameter="model")


def _sampling(body: Mapping[str, Any], eos: int, N_V: int) -> Sampling:
    top_k = body.get("top_k")
    sampling: Sampling = {
        "tau": _number(body, "temperature", 1.0),
        "top_k": None if top_k is None else _integer(body, "top_k", 1, least=1, most=N_V),
        "top_p": None if body.get("top_p") in (None, 1) else _number(body, "top_p", 1.0),
        "eos": eos,
        "repetition_penalty": _number(body, "repetition_penalty", 1.0),
        "no_repeat_ngram_size": _integer(body, "no_repeat_ngram_size", 0, least=0, most=1 << 16),
    }
    try:
        check_sampling(sampling, N_V)
    except ValueError as wrong:
        raise RequestError(str(wrong).replace("tau:", "temperature:", 1)) from None
    return sampling


def _prompts(given: Any, tokenizer: Tokenizer, N_V: int, read: Callable[[str], Prompt]) -> list[Prompt]:
    """Return the prompts of a text, texts, tokens, or lists of tokens."""
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    prompts = []
    for one in given if several else [given]:
        if isinstance(one, str):
            try:
                prompts.append(read(one))
            except ValueError as wrong:
                raise RequestError(f"prompt: {wrong}", parameter="prompt") from None
        elif isinstance(one, list) and one and all(type(v) is int and 0 <= v < N_V for v in one):
            prompts.append(Prompt(tokenizer.framed(one, ends=False)))
        else:
            message = f"prompt: expected a text, tokens from 0 to {N_V - 1}, or a list of these, and nothing empty"
            raise RequestError(message, parameter="prompt")
    return prompts


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise RequestError(f"stop: expected a text or at most {MOST_STOPS}, none of them empty", parameter="stop")
    return tuple(stops)


def _integer(body: Mapping[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    value = default if body.get(name) is None else body[name]
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"{name}: expected an integer from {least} to {most}, got {value!r}", parameter=name)
    return value


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = default if body.get(name) is None else body[name]
    if type(value) not in (int, float):
        raise RequestError(f"{name}: expected a number, got {value!r}", parameter=name)
    try:
        return float(value)
    except OverflowError:
        raise RequestError(f"{name}: expected a number below 10^308, got one of more digits", parameter=name) from None


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f"{name}: expected true or false, got {value!r}", parameter=name)
    return bool(value)


def envelope(identity: str, created: int, model: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return an answer, or a part of one that is streamed."""
    same = {"id": identity, "object": "text_completion", "created": created, "model": model}
    return {**same, "choices": choices, **more}


def choice(
    index: int, steps: Sequence[Step], tokenizer: Tokenizer, logprobs: int | None, *, offset: int = 0
) -> dict[str, Any]:
    """Return a completion, or a part of one.

    Args:
        index: which of the request's.
        steps: what was generated.
        tokenizer: the model's.
        logprobs: how many of the likeliest tokens to tell, None for none and no log-probabilities.
        offset: characters of the parts before.
    """
    finish = steps[-1].finish if steps else None
    told = None if logprobs is None else _logprobs(steps, tokenizer, logprobs, offset)
    return {"index": index, "text": "".join(step.text for step in steps), "logprobs": told, "finish_reason": finish}


def _logprobs(steps: Sequence[Step], tokenizer: Tokenizer, logprobs: int, offset: int) -> dict[str, Any]:
    """Tell the tokens one by one; where one of them is half a character, its text is U+FFFD."""
    offsets = []
    for step in steps:
        offsets.append(offset)
        offset += len(step.text)
    return {
        "tokens": [tokenizer.decode([step.token]) for step in steps],
        "token_logprobs": [step.log_p for step in steps],
        "top_logprobs": [
            {tokenizer.decode([token]): log_p for token, log_p in reversed(step.likeliest[:logprobs])} for step in steps
        ],
        "text_offset": offsets,
    }


def usage(prompts: Sequence[Prompt], generated: int) -> dict[str, int]:
    """Return how many tokens were read and generated."""
    read = sum(len(prompt.tokens) for prompt in prompts)
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


def error(message: str, *, status: int, parameter: str | None = None) -> dict[str, Any]:
    """Return an error as clients of OpenAI's expect it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": parameter, "code": None}}
