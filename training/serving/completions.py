"""Requests for completions, and their answers: https://platform.openai.com/docs/api-reference/completions."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation.prompts import Prompt
from training.serving.engine import Step
from training.serving.errors import RequestError
from training.serving.fields import boolean, check_fields, check_model, integer
from training.serving.generating import FIELDS, Asked, text_of, token_list, wishes
from training.serving.served import Decoder, Served

NEUTRAL: dict[str, tuple[Any, ...]] = {"best_of": (None, 1), "suffix": (None, "")}
MOST_LOGPROBS = 5


@dataclasses.dataclass(kw_only=True)
class Completion:
    """A request for completions, and what its answers begin with."""

    prefix = "cmpl"
    objects = ("text_completion", "text_completion")

    asked: Asked  # what is to be generated
    tokenizer: Tokenizer  # the model's
    logprobs: int | None  # how many of the likeliest tokens to tell; None: no log-probabilities at all
    echo: bool  # whether the answers begin with the prompts
    texts: list[str]  # the prompts as text
    # what is known of the tokens of each prompt, where they are told
    scores: list[dict[str, list[Any]]] = dataclasses.field(default_factory=list)

    @property
    def tells_prompts(self) -> bool:
        """Whether the log-probabilities of the prompts are to be told."""
        return self.echo and self.logprobs is not None

    def score(self, model: Decoder) -> bool:
        """Find the log-probabilities of the prompts."""
        self.scores = [self._of_prompt(model, prompt.tokens) for prompt in self.asked.prompts]
        return True

    def _of_prompt(self, model: Decoder, tokens: list[int]) -> dict[str, list[Any]]:
        log_p, likeliest, of_likeliest = model.score(tokens)
        pairs = [list(zip(v.tolist(), p.tolist(), strict=True)) for v, p in zip(likeliest, of_likeliest, strict=True)]
        framing = tokens[:1] if tokens[0] in self.tokenizer.special_tokens else []  # bos, which the client did not give
        told = self._told(tokens[1:], log_p.tolist(), pairs)
        if not framing:
            first = {"tokens": [self.tokenizer.decode(tokens[:1])], "token_logprobs": [None], "top_logprobs": [None]}
            told = {name: first[name] + told[name] for name in told}
        lengths = [len(text) for text in told["tokens"]]
        return {**told, "text_offset": [0, *itertools.accumulate(lengths)][:-1]}

    def opening(self) -> list[dict[str, Any]]:
        """Return what a stream begins with."""
        if not self.echo:
            return []
        n, last = self.asked.n, "length" if not self.asked.l_gen else None
        return [self._choice(i, self.texts[i // n], self._of_echo(i), last) for i in range(n * len(self.texts))]

    def part(self, index: int, step: Step, before: int) -> dict[str, Any]:
        """Return one more token of a completion, after this many generated characters."""
        return self._choice(index, step.text, self._of_steps(index, [step], before), step.finish)

    def whole(self, index: int, steps: Sequence[Step]) -> dict[str, Any]:
        """Return a completion."""
        text, told = text_of(steps), self._of_steps(index, steps, 0)
        if self.echo:
            text, of_echo = self.texts[index // self.asked.n] + text, self._of_echo(index)
            if told is not None and of_echo is not None:
                told = {name: of_echo[name] + told[name] for name in told}
        return self._choice(index, text, told, steps[-1].finish if steps else "length")

    @staticmethod
    def _choice(index: int, text: str, told: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": told, "finish_reason": finish}

    def _of_echo(self, index: int) -> dict[str, list[Any]] | None:
        return None if self.logprobs is None else self.scores[index // self.asked.n]

    def _of_steps(self, index: int, steps: Sequence[Step], before: int) -> dict[str, Any] | None:
        """Tell the tokens one by one; where one of them is half a character, its text is U+FFFD."""
        if self.logprobs is None:
            return None
        start = before + (len(self.texts[index // self.asked.n]) if self.echo else 0)
        offsets = list(itertools.accumulate((len(step.text) for step in steps), initial=start))[:-1]
        told = self._told(
            [step.token for step in steps], [step.log_p for step in steps], [step.likeliest for step in steps]
        )
        return {**told, "text_offset": offsets}

    def _told(
        self, tokens: Sequence[int], log_p: Sequence[float], likeliest: Sequence[list[tuple[int, float]]]
    ) -> dict[str, list[Any]]:
        decode, n = self.tokenizer.decode, self.logprobs or 0
        return {
            "tokens": [decode([token]) for token in tokens],
            "token_logprobs": list(log_p),
            "top_logprobs": [{decode([token]): p for token, p in reversed(best[:n])} for best in likeliest],
        }


def completion_of(body: Any, served: Served) -> Completion:
    """Return what a request's JSON asks for, or raise RequestError if a field is unknown, or not what it should be."""
    check_fields(body, (*FIELDS, "prompt", "echo"), NEUTRAL)
    check_model(body.get("model"), served.name)
    if not isinstance(served.model, Decoder):
        raise RequestError("the model is an encoder, which completes nothing: use /v1/embeddings")
    common, echo = wishes(body, served), boolean(body, "echo")
    prompts = _prompts(body.get("prompt"), served, served.model)
    if len(prompts) * common["n"] > served.limits.choices:
        message = f"{len(prompts)} prompts with n = {common['n']} are more than the {served.limits.choices} completions"
        raise RequestError(f"{message} of a request", parameter="n")
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
    """Return the prompts of a text, texts, tokens, or lists of tokens; each as text, too."""
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    prompts, N_V = [], served.tokenizer.N_V
    for one in given if several else [given]:
        tokens = token_list(one, N_V)
        if isinstance(one, str):
            try:
                prompts.append((one, model.read(one)))
            except ValueError as wrong:
                raise RequestError(f"prompt: {wrong}", parameter="prompt") from None
        elif tokens:
            framed = Prompt(served.tokenizer.framed(tokens, ends=False))
            prompts.append((served.tokenizer.decode(tokens), framed))
        else:
            message = f"prompt: expected a text, tokens from 0 to {N_V - 1}, or a list of these, and nothing empty"
            raise RequestError(message, parameter="prompt")
    return prompts
