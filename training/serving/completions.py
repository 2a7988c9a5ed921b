"""Completion requests and their answers: https://platform.openai.com/docs/api-reference/completions."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation.requests import Prompt
from training.serving.engine import Step
from training.serving.fields import RequestError, boolean, check_fields, check_model, errors_of, integer, invalid
from training.serving.generating import FIELDS, Asked, common_fields, listed, not_text, token_list
from training.serving.served import Decoder, Served

NEUTRAL: dict[str, tuple[Any, ...]] = {"best_of": (None, 1), "suffix": (None, "")}
MOST_LOGPROBS = 5


@dataclasses.dataclass(kw_only=True)
class Completion:
    """A request for completions, and what its answers say of the prompts."""

    prefix = "cmpl"
    objects = ("text_completion", "text_completion")

    asked: Asked  # what to generate
    tokenizer: Tokenizer  # the model's
    logprobs: int | None  # how many of the likeliest tokens to report; None: no log-probabilities at all
    echo: bool  # whether the answers begin with the prompts
    texts: list[str]  # the prompts as text
    scores: list[dict[str, list[Any]]] = dataclasses.field(default_factory=list)  # of each prompt, if reported

    def scored(self, model: Decoder) -> list[dict[str, list[Any]]]:
        """Return the `scores` of the prompts."""
        return [self._of_prompt(model, prompt.tokens) for prompt in self.asked.prompts]

    def _of_prompt(self, model: Decoder, tokens: list[int]) -> dict[str, list[Any]]:
        log_p, likeliest, of_likeliest = (array.tolist() for array in model.score(tokens))
        pairs = [list(zip(*of_token, strict=True)) for of_token in zip(likeliest, of_likeliest, strict=True)]
        of_tokens = zip(tokens[1:], log_p, pairs, strict=True)
        reported = self._reported([Step("", token, p, best, None) for token, p, best in of_tokens])
        if tokens[0] not in self.tokenizer.special_tokens:  # bos is not part of the client's prompt
            first = {"tokens": [self.tokenizer.decode(tokens[:1])], "token_logprobs": [None], "top_logprobs": [None]}
            reported = {name: first[name] + reported[name] for name in reported}
        lengths = [len(text) for text in reported["tokens"]]
        return {**reported, "text_offset": [0, *itertools.accumulate(lengths)][:-1]}

    def opening(self) -> list[dict[str, Any]]:
        """Return the first parts of a stream: the prompts, if they are echoed."""
        if not self.echo:
            return []
        n, last = self.asked.n, "length" if not self.asked.l_gen else None
        return [self._choice(i, self.texts[i // n], self._of_echo(i), last) for i in range(n * len(self.texts))]

    def part(self, index: int, step: Step, before: int) -> dict[str, Any]:
        """Return one token of a completion, which `before` generated characters precede."""
        return self._choice(index, step.text, self._of_steps(index, [step], before), step.finish)

    def whole(self, index: int, steps: Sequence[Step]) -> dict[str, Any]:
        """Return a completion."""
        text, reported = "".join(step.text for step in steps), self._of_steps(index, steps, 0)
        if self.echo:
            text, of_echo = self.texts[index // self.asked.n] + text, self._of_echo(index)
            if reported is not None and of_echo is not None:
                reported = {name: of_echo[name] + reported[name] for name in reported}
        return self._choice(index, text, reported, steps[-1].finish if steps else "length")

    @staticmethod
    def _choice(index: int, text: str, reported: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": reported, "finish_reason": finish}

    def _of_echo(self, index: int) -> dict[str, list[Any]] | None:
        return None if self.logprobs is None else self.scores[index // self.asked.n]

    def _of_steps(self, index: int, steps: Sequence[Step], before: int) -> dict[str, Any] | None:
        """Return the log-probabilities of generated tokens; the text of part of a character is U+FFFD."""
        if self.logprobs is None:
            return None
        start = before + (len(self.texts[index // self.asked.n]) if self.echo else 0)
        offsets = list(itertools.accumulate((len(step.text) for step in steps), initial=start))[:-1]
        return {**self._reported(steps), "text_offset": offsets}

    def _reported(self, steps: Sequence[Step]) -> dict[str, list[Any]]:
        decode, n = self.tokenizer.decode, self.logprobs or 0
        return {
            "tokens": [decode([step.token]) for step in steps],
            "token_logprobs": [step.log_p for step in steps],
            "top_logprobs": [{decode([token]): p for token, p in reversed(step.likeliest[:n])} for step in steps],
        }


def completion_of(body: Any, served: Served) -> Completion:
    """Parse a request's JSON. Raises RequestError if a field is unknown or invalid, or the model is an encoder."""
    check_fields(body, (*FIELDS, "prompt", "echo"), NEUTRAL)
    check_model(body.get("model"), served.name)
    if not isinstance(served.model, Decoder):
        raise RequestError("the model is an encoder, which cannot complete text: use /v1/embeddings")
    common, echo = common_fields(body, served), boolean(body, "echo")
    prompts = _prompts(body.get("prompt"), served, served.model)
    if len(prompts) * common["n"] > served.limits.choices:
        asked = f"{len(prompts)} prompts with n = {common['n']}"
        raise invalid("n", f"expected at most {served.limits.choices} completions per request, got {asked}")
    logprobs = None
    if body.get("logprobs") is not None:
        logprobs = integer(body, "logprobs", 0, least=0, most=MOST_LOGPROBS)
    longest = max(len(prompt.tokens) for _, prompt in prompts)
    if echo and logprobs is not None and longest > served.config.l_max:
        message = f"echo with logprobs: the prompt has {longest} tokens, expected at most l_max = {served.config.l_max}"
        raise RequestError(message, parameter="echo", code="context_length_exceeded")
    l_gen = integer(body, "max_tokens", 16, least=0 if echo else 1, most=served.limits.tokens)
    asked = Asked(prompts=[prompt for _, prompt in prompts], l_gen=l_gen, **common)
    return Completion(
        asked=asked, tokenizer=served.tokenizer, logprobs=logprobs, echo=echo, texts=[text for text, _ in prompts]
    )


def _prompts(given: Any, served: Served, model: Decoder) -> list[tuple[str, Prompt]]:
    """Return the prompts in a text, texts, tokens, or lists of tokens, each with its text."""
    prompts, N_V = [], served.tokenizer.N_V
    for one in listed(given):
        if isinstance(one, str):
            with errors_of("prompt"):
                prompts.append((one, model.read(one)))
        elif tokens := token_list(one, N_V):
            framed = Prompt(served.tokenizer.framed(tokens, ends=False))
            prompts.append((served.tokenizer.decode(tokens), framed))
        else:
            raise not_text("prompt", N_V)
    return prompts
