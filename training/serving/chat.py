"""Chat requests and their answers: https://platform.openai.com/docs/api-reference/chat; tokenization requests."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation.requests import Prompt
from training.serving.engine import Step
from training.serving.fields import RequestError, boolean, check_fields, check_model, errors_of, integer, invalid
from training.serving.generating import FIELDS, Asked, common_fields, escaped, shown
from training.serving.memory import LIKELIEST
from training.serving.served import Decoder, Served

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "function_call": (None, "none"),
    "functions": (None, []),
    "tools": (None, []),
    "store": (None, False),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, False, True),
}


@dataclasses.dataclass(kw_only=True)
class Chat:
    """A request for the next answer in a conversation."""

    prefix = "chatcmpl"
    objects = ("chat.completion", "chat.completion.chunk")

    asked: Asked  # what to generate
    tokenizer: Tokenizer  # the model's
    logprobs: int | None  # how many of the likeliest tokens to report; None: no log-probabilities at all

    def opening(self) -> list[dict[str, Any]]:
        """Return the first parts of a stream: the roles."""
        return [self._delta(i, {"role": "assistant", "content": ""}, None, None) for i in range(self.asked.n)]

    def part(self, index: int, step: Step) -> dict[str, Any]:
        """Return one token of an answer."""
        return self._delta(index, {"content": step.text} if step.text else {}, self._reported([step]), step.finish)

    def whole(self, index: int, steps: Sequence[Step]) -> dict[str, Any]:
        """Return an answer."""
        message = {"role": "assistant", "content": "".join(step.text for step in steps), "refusal": None}
        finish = steps[-1].finish
        return {"index": index, "message": message, "logprobs": self._reported(steps), "finish_reason": finish}

    @staticmethod
    def _delta(index: int, new: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": new, "logprobs": logprobs, "finish_reason": finish}

    def _reported(self, steps: Sequence[Step]) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        of_steps = []
        for step in steps:
            best = [self._token(token, log_p, step) for token, log_p in step.likeliest[: self.logprobs]]
            of_steps.append({**self._token(step.token, step.log_p, step), "top_logprobs": best})
        return {"content": of_steps, "refusal": None}

    def _token(self, token: int, log_p: float | None, step: Step) -> dict[str, Any]:
        text, spelled = shown(self.tokenizer, token, begins=step.begins)
        return {"token": escaped(spelled) if text is None else text, "logprob": log_p, "bytes": list(spelled)}


def chat_of(body: Any, served: Served) -> Chat:
    """Parse a request's JSON. Raises RequestError if a field is unknown or invalid, or the model has no template."""
    check_fields(body, (*FIELDS, "messages", "max_completion_tokens", "top_logprobs"), NEUTRAL)
    check_model(body.get("model"), served.name)
    common = common_fields(body, served)
    tokens = conversation(body.get("messages"), served)
    logprobs = integer(body, "top_logprobs", 0, least=0, most=LIKELIEST)
    if not boolean(body, "logprobs"):
        if logprobs:
            raise invalid("top_logprobs", "expected logprobs to be true")
        logprobs = None
    asked = Asked(prompts=[Prompt(tokens, answers=True)], l_gen=_most_tokens(body, len(tokens), served), **common)
    return Chat(asked=asked, tokenizer=served.tokenizer, logprobs=logprobs)


def _most_tokens(body: dict[str, Any], l: int, served: Served) -> int:
    """Return the most tokens of an answer to l tokens; by default, as many as the context has room for."""
    l_max = served.config.l_max
    room = l_max - l + 1  # the last token is never read
    if room < 1:
        long = f"the conversation has {l} tokens, and the model reads at most l_max = {l_max}: shorten it"
        raise invalid("messages", long, "context_length_exceeded")
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    if body.get("max_tokens") is not None and name == "max_completion_tokens":
        raise invalid("max_tokens", "expected it or max_completion_tokens, got both")
    assert isinstance(served.model, Decoder)
    default = max(1, min(room, served.limits.tokens, served.model.budget.slots - l))
    l_gen = integer(body, name, default, least=1, most=served.limits.tokens)
    if l_gen > room:
        long = f"the conversation has {l} tokens, and l_max = {l_max} leaves room for at most {room} more, got {l_gen}"
        raise invalid(name, long, "context_length_exceeded")
    return l_gen


def conversation(messages: Any, served: Served) -> list[int]:
    """Return a conversation's tokens, up to where the next answer begins, or raise RequestError."""
    if not isinstance(served.model, Decoder):
        raise RequestError("the model is an encoder, which cannot answer: use /v1/embeddings")
    if served.model.converse is None:
        raise RequestError(
            "the model has no template for chat, as it was not trained on conversations: use /v1/completions"
        )
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "expected a list of at least one message")
    with errors_of("messages"):
        return served.model.converse([_message(i, message) for i, message in enumerate(messages)])


def _message(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{i}]: expected an object with a role and a content", parameter="messages")
    others = {name for name, value in message.items() if value not in (None, [])} - {"role", "content", "name"}
    if others:
        raise RequestError(f"messages[{i}]: {min(others)} is not supported: leave it out", parameter="messages")
    content = message.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"messages[{i}].content: expected a text, or a list of text parts", parameter="messages")
    named = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    role = "system" if message["role"] == "developer" else message["role"]  # its name in newer models of OpenAI
    return {"role": role, "content": content, **named}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def tokenized(body: Any, served: Served) -> dict[str, Any]:
    """Return the tokens of a prompt or a conversation as the model reads them, in vLLM's format."""
    check_fields(body, ("model", "prompt", "messages", "add_special_tokens"), {})
    if body.get("model") is not None:
        check_model(body["model"], served.name)
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise invalid("prompt", "expected either prompt or messages")
    framing, prompt = boolean(body, "add_special_tokens", default=True), body.get("prompt")
    if prompt is None:
        tokens = conversation(body["messages"], served)
    elif not isinstance(prompt, str):
        raise RequestError(f"prompt: expected a text, got {prompt!r}"[:200], parameter="prompt")
    else:
        with errors_of("prompt"):
            tokens = served.tokenizer.encode(prompt)
        tokens = served.tokenizer.framed(tokens, ends=not isinstance(served.model, Decoder)) if framing else tokens
    return {"count": len(tokens), "max_model_len": served.config.l_max, "tokens": tokens}
