"""Completion requests and their answers: https://platform.openai.com/docs/api-reference/completions."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation.requests import Prompt
from training.serving.engine import Token
from training.serving.errors import RequestError, errors_of, invalid
from training.serving.fields import listed
from training.serving.generating import GenerationPlan, common_fields, escaped, shown
from training.serving.requests import CompletionRequest
from training.serving.served import Decoder, ServedModel


@dataclasses.dataclass(kw_only=True)
class Completion:
    """A request for completions, and what its answers say of the prompts."""

    prefix = "cmpl"
    objects = ("text_completion", "text_completion")

    plan: GenerationPlan  # what to generate
    tokenizer: Tokenizer  # the model's
    logprobs: int | None  # how many of the likeliest tokens to report; None: no log-probabilities at all
    echo: bool  # whether the answers begin with the prompts
    texts: list[str]  # the prompts as text

    def opening(self) -> list[dict[str, Any]]:
        """Return the first parts of a stream: the prompts, if they are echoed."""
        if not self.echo:
            return []
        n = self.plan.n
        return [self._choice(i, self.texts[i // n], None, None) for i in range(n * len(self.texts))]

    def part(self, index: int, step: Token) -> dict[str, Any]:
        """Return one token of a completion."""
        return self._choice(index, step.text, self._reported([step]), step.finish)

    def whole(self, index: int, steps: Sequence[Token]) -> dict[str, Any]:
        """Return a completion."""
        prompt = self.texts[index // self.plan.n] if self.echo else ""
        text = prompt + "".join(step.text for step in steps)
        return self._choice(index, text, self._reported(steps), steps[-1].finish)

    @staticmethod
    def _choice(index: int, text: str, reported: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": reported, "finish_reason": finish}

    def _reported(self, steps: Sequence[Token]) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        return {
            "tokens": [self._token(step.token, step) for step in steps],
            "token_logprobs": [step.log_p for step in steps],
            "top_logprobs": [self._best(step) for step in steps],
            "text_offset": [max(0, step.start) for step in steps],
        }

    def _best(self, step: Token) -> dict[str, float | None]:
        """Return the token that was drawn, and the likeliest; of several with one text, all but one by their IDs."""
        found: dict[str, float | None] = {}
        for token, log_p in dict([(step.token, step.log_p), *step.likeliest[: self.logprobs]]).items():
            text = self._token(token, step)
            found[f"token_id:{token}" if text in found else text] = log_p
        return found

    def _token(self, token: int, step: Token) -> str:
        text, spelled = shown(self.tokenizer, token, begins=step.begins)
        return f"bytes:{escaped(spelled)}" if text is None else text


def completion_of(body: Any, served: ServedModel) -> Completion:
    """Parse a request's JSON. Raises RequestError if a field is unknown or invalid, or the model is an encoder."""
    request = CompletionRequest.read(body, served)
    if not isinstance(served.model, Decoder):
        raise RequestError("the model is an encoder, which cannot complete text: use /v1/embeddings")
    common, echo, logprobs = common_fields(request, served), request.echo, request.logprobs
    prompts = _prompts(request, served.tokenizer, served.model)
    if len(prompts) * common["n"] > served.limits.queue:
        asked = f"{len(prompts)} prompts with n = {common['n']}"
        raise invalid("n", f"expected at most {served.limits.queue} completions per request, got {asked}")
    if echo and logprobs is not None:
        message = "echo and logprobs exclude each other: training.generation.scoring has the probabilities of texts"
        raise RequestError(message, parameter="echo")
    plan = GenerationPlan(prompts=[prompt for _, prompt in prompts], l_gen=request.max_tokens, **common)
    return Completion(
        plan=plan,
        tokenizer=served.tokenizer,
        logprobs=logprobs,
        echo=echo,
        texts=[text for text, _ in prompts],
    )


def _prompts(request: CompletionRequest, tokenizer: Tokenizer, model: Decoder) -> list[tuple[str, Prompt]]:
    """Return the prompts of a request, each with its text."""
    prompts, parse, framed = [], request.parse_special, request.add_special_tokens
    for one in listed(request.prompt):
        if isinstance(one, str):
            with errors_of("prompt"):
                prompt = model.read(one, parse_special=parse, framed=framed, keep_final_space=request.keep_final_space)
                prompts.append((one, prompt))
        else:
            prompts.append((_named(tokenizer, one), Prompt(one)))
    return prompts


def _named(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text of tokens, with the names of special ones."""
    text = ""
    for is_special, group in itertools.groupby(tokens, tokenizer.is_special):
        some = list(group)
        text += "".join(map(tokenizer.name, some)) if is_special else tokenizer.decode(some)
    return text
