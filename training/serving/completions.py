"""Completion requests and their answers: https://platform.openai.com/docs/api-reference/completions."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation.pieces import Pieces
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
    framing: list[int]  # how many tokens before each of them are not the client's
    scores: list[dict[str, list[Any]]] = dataclasses.field(default_factory=list)  # of each prompt, if reported

    def scored(self, model: Decoder) -> list[dict[str, list[Any]]]:
        """Return the `scores` of the prompts."""
        return [self._of_prompt(model, *of_one) for of_one in zip(self.plan.prompts, self.framing, strict=True)]

    def _of_prompt(self, model: Decoder, prompt: Prompt, framing: int) -> dict[str, list[Any]]:
        log_p, likeliest, of_likeliest = (array.tolist() for array in model.score(prompt.tokens))
        best = [list(zip(*of_token, strict=True)) for of_token in zip(likeliest, of_likeliest, strict=True)]
        text, steps, names = Pieces(self.tokenizer), [], 0  # characters of the names of special tokens
        for i, (token, p, pairs) in enumerate(zip(prompt.tokens, [None, *log_p], [[], *best], strict=True)):
            place, begins = text.place
            text.add(token)
            steps.append(Token("", token, p, pairs, None, place + names, begins))
            if i >= framing and self.tokenizer.is_special(token):
                names += len(self.tokenizer.name(token))
        reported = self._reported(steps[framing:])
        if not framing:
            reported["top_logprobs"][0] = None
        return reported

    def opening(self) -> list[dict[str, Any]]:
        """Return the first parts of a stream: the prompts, if they are echoed."""
        if not self.echo:
            return []
        n, last = self.plan.n, "length" if not self.plan.l_gen else None
        return [self._choice(i, self.texts[i // n], self._of_echo(i), last) for i in range(n * len(self.texts))]

    def part(self, index: int, step: Token) -> dict[str, Any]:
        """Return one token of a completion."""
        return self._choice(index, step.text, self._of_steps(index, [step]), step.finish)

    def whole(self, index: int, steps: Sequence[Token]) -> dict[str, Any]:
        """Return a completion."""
        text, reported = "".join(step.text for step in steps), self._of_steps(index, steps)
        if self.echo:
            text, of_echo = self.texts[index // self.plan.n] + text, self._of_echo(index)
            if reported is not None and of_echo is not None:
                reported = {name: of_echo[name] + reported[name] for name in reported}
        return self._choice(index, text, reported, steps[-1].finish if steps else "length")

    @staticmethod
    def _choice(index: int, text: str, reported: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": reported, "finish_reason": finish}

    def _of_echo(self, index: int) -> dict[str, list[Any]] | None:
        return None if self.logprobs is None else self.scores[index // self.plan.n]

    def _of_steps(self, index: int, steps: Sequence[Token]) -> dict[str, Any] | None:
        """Return the log-probabilities of generated tokens, whose offsets count from the beginning of what is shown."""
        if self.logprobs is None:
            return None
        start = len(self.texts[index // self.plan.n]) if self.echo else 0
        return self._reported(steps, start)

    def _reported(self, steps: Sequence[Token], start: int = 0) -> dict[str, list[Any]]:
        return {
            "tokens": [self._token(step.token, step) for step in steps],
            "token_logprobs": [step.log_p for step in steps],
            "top_logprobs": [self._best(step) for step in steps],
            "text_offset": [max(0, start + step.start) for step in steps],
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
    longest = max(len(prompt.tokens) for _, prompt, _ in prompts)
    if echo and logprobs is not None and longest > served.config.l_max:
        message = f"echo with logprobs: the prompt has {longest} tokens, expected at most l_max = {served.config.l_max}"
        raise RequestError(message, parameter="echo", code="context_length_exceeded")
    l_gen, least, most = request.max_tokens, 0 if echo else 1, served.limits.tokens
    if not least <= l_gen <= most:
        raise invalid("max_tokens", f"expected an integer from {least} to {most}, got {l_gen}")
    plan = GenerationPlan(prompts=[prompt for _, prompt, _ in prompts], l_gen=l_gen, **common)
    return Completion(
        plan=plan,
        tokenizer=served.tokenizer,
        logprobs=logprobs,
        echo=echo,
        texts=[text for text, _, _ in prompts],
        framing=[framing for _, _, framing in prompts],
    )


def _prompts(request: CompletionRequest, tokenizer: Tokenizer, model: Decoder) -> list[tuple[str, Prompt, int]]:
    """Return the prompts of a request, each with its text, and how many tokens precede it that are not the client's."""
    prompts, parse, framed = [], request.parse_special, request.add_special_tokens
    framing = len(tokenizer.framed([0], ends=False)) - 1 if framed else 0
    for one in listed(request.prompt):
        if isinstance(one, str):
            with errors_of("prompt"):
                prompt = model.read(one, parse_special=parse, framed=framed, keep_final_space=request.keep_final_space)
                prompts.append((one, prompt, framing))
        else:
            prompts.append((_named(tokenizer, one), Prompt(one), 0))
    return prompts


def _named(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text of tokens, with the names of special ones."""
    text = ""
    for is_special, group in itertools.groupby(tokens, tokenizer.is_special):
        some = list(group)
        text += "".join(map(tokenizer.name, some)) if is_special else tokenizer.decode(some)
    return text
