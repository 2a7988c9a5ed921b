"""Chat requests and their answers: https://platform.openai.com/docs/api-reference/chat."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from training.data.tokenizers import Tokenizer
from training.generation.requests import Prompt
from training.serving.calls import CallReader, Delta
from training.serving.engine import Token
from training.serving.errors import RequestError, invalid
from training.serving.generating import GenerationPlan, common_fields, escaped, shown
from training.serving.messages import conversation, speaker
from training.serving.requests import ChatRequest
from training.serving.served import Decoder, ServedModel
from training.serving.tools import Tools, grammar_of, tools_of


@dataclasses.dataclass(kw_only=True)
class Chat:
    """A request for the next answer in a conversation."""

    prefix = "chatcmpl"
    objects = ("chat.completion", "chat.completion.chunk")

    plan: GenerationPlan  # what to generate
    tokenizer: Tokenizer  # the model's
    logprobs: int | None  # how many of the likeliest tokens to report; None: no log-probabilities at all
    tools: Tools | None  # what the answers may call
    readers: dict[int, CallReader] = dataclasses.field(default_factory=dict)  # of streamed answers

    def opening(self) -> list[dict[str, Any]]:
        """Return the first parts of a stream: the roles."""
        return [self._delta(i, {"role": "assistant", "content": ""}, None, None) for i in range(self.plan.n)]

    def part(self, index: int, step: Token) -> dict[str, Any]:
        """Return one token of an answer."""
        if self.tools is not None and index not in self.readers:
            self.readers[index] = self.tools.reader()
        read, finish = _read(self.readers.get(index), step.text, step.finish)
        new: dict[str, Any] = {"content": read.content} if read.content else {}
        if read.calls:
            new["tool_calls"] = [*read.calls]
        return self._delta(index, new, self._reported([step]), finish)

    def whole(self, index: int, steps: Sequence[Token]) -> dict[str, Any]:
        """Return an answer."""
        reader = None if self.tools is None else self.tools.reader()
        read, finish = _read(reader, "".join(step.text for step in steps), steps[-1].finish)
        message: dict[str, Any] = {"role": "assistant", "content": read.content, "refusal": None}
        if read.calls:
            calls = [{name: part[name] for name in ("id", "type", "function")} for part in read.calls]
            message |= {"content": read.content or None, "tool_calls": calls}
        return {"index": index, "message": message, "logprobs": self._reported(steps), "finish_reason": finish}

    @staticmethod
    def _delta(index: int, new: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": new, "logprobs": logprobs, "finish_reason": finish}

    def _reported(self, steps: Sequence[Token]) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        of_steps = []
        for step in steps:
            best = [self._token(token, log_p, step) for token, log_p in step.likeliest[: self.logprobs]]
            of_steps.append({**self._token(step.token, step.log_p, step), "top_logprobs": best})
        return {"content": of_steps, "refusal": None}

    def _token(self, token: int, log_p: float | None, step: Token) -> dict[str, Any]:
        text, spelled = shown(self.tokenizer, token, begins=step.begins)
        return {"token": escaped(spelled) if text is None else text, "logprob": log_p, "bytes": list(spelled)}


def _read(reader: CallReader | None, text: str, finish: str | None) -> tuple[Delta, str | None]:
    """Return what a text says and calls, and how it ends."""
    if reader is None:
        return Delta(text), finish
    read = reader.add(text, is_last=finish is not None)
    return read, "tool_calls" if reader.n and finish == "stop" else finish


def chat_of(body: Any, served: ServedModel) -> Chat:
    """Parse a request's JSON. Raises RequestError if a field is unknown or invalid, or the model has no template."""
    request = ChatRequest.read(body, served)
    common = common_fields(request, served)
    model = speaker(served)
    tools = tools_of(request, body.get("tools"), model)
    tokens = conversation(request, tools, model)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "expected logprobs to be true")
    plan = GenerationPlan(
        prompts=[Prompt(tokens, answers=True)],
        l_gen=_most_tokens(request, len(tokens), served),
        named={} if tools is None else tools.form.named(served.tokenizer),
        grammar=grammar_of(request, tools, common["ends"].tokens, model),
        **common,
    )
    logprobs = request.top_logprobs if request.logprobs else None
    return Chat(plan=plan, tokenizer=served.tokenizer, logprobs=logprobs, tools=tools)


def _most_tokens(request: ChatRequest, l: int, served: ServedModel) -> int:
    """Return the most tokens of an answer to l tokens; by default, as many as the context has room for."""
    l_max = served.config.l_max
    room = l_max - l + 1  # the last token is never read
    if room < 1:
        long = f"the conversation has {l} tokens, and the model reads at most l_max = {l_max}: shorten it"
        raise invalid("messages", long, "context_length_exceeded")
    asked = {name: getattr(request, name) for name in ("max_tokens", "max_completion_tokens")}
    asked = {name: l_gen for name, l_gen in asked.items() if l_gen is not None}
    if len(asked) > 1:
        raise RequestError("max_tokens and max_completion_tokens exclude each other", parameter="max_tokens")
    for name, l_gen in asked.items():
        if l_gen > room:
            long = f"the conversation has {l} tokens, and l_max = {l_max} leaves room for at most {room} more"
            raise invalid(name, f"{long}, got {l_gen}", "context_length_exceeded")
        return l_gen
    assert isinstance(served.model, Decoder)
    return max(1, min(room, served.limits.tokens, served.model.budget.slots - l))
