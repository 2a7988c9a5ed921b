"""Conversations in requests, as the model reads them, and requests for tokens."""

import re
from typing import Any

from training.serving.errors import RequestError, errors_of, invalid
from training.serving.requests import ChatRequest, Message, TokenizeRequest, arguments_of
from training.serving.served import Decoder, ServedModel
from training.serving.tools import Tools, tools_of

KWARGS = "chat_template_kwargs"
OWN = ("messages", "tools", "add_generation_prompt")  # variables that other fields set


def speaker(served: ServedModel) -> Decoder:
    """Return the model, if it can answer conversations. Raises RequestError."""
    model = served.model
    if not isinstance(model, Decoder):
        raise RequestError("the model is an encoder, which cannot answer: use /v1/embeddings")
    if model.converse is None:
        raise RequestError(
            "the model has no template for chat, as it was not trained on conversations: use /v1/completions"
        )
    return model


def conversation(request: ChatRequest | TokenizeRequest, tools: Tools | None, model: Decoder) -> list[int]:
    """Return the tokens of a conversation, up to where the next answer begins. Raises RequestError."""
    called, variables = dict[str, str](), request.variables
    read = [_message(i, message, model, called) for i, message in enumerate(request.messages or ())]
    for name in variables:
        if name in OWN or not re.search(rf"\b{re.escape(name)}\b", model.template):
            field = (
                "reasoning_effort" if request.reasoning_effort is not None and name == "reasoning_effort" else KWARGS
            )
            raise invalid(field, f"expected variables that the chat template reads, got {name[:80]!r}; leave it out")
    assert model.converse is not None
    with errors_of("messages"):
        return model.converse(read, **variables, **({} if tools is None else {"tools": tools.offered}))


def _message(i: int, message: Message, model: Decoder, called: dict[str, str]) -> dict[str, Any]:
    """Return a message, given the names of the tools that were called so far, by the IDs of the calls."""
    role = "system" if message.role == "developer" else message.role  # its name in newer models of OpenAI
    for name, caller in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, name) and role != caller:
            raise _wrong(f"messages[{i}]: {name} is not supported: leave it out")
    content, more = message.content, dict[str, Any]()
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    if message.tool_calls:
        if model.calls is None:
            raise _wrong(f"messages[{i}]: the chat template writes no tool_calls: leave them out")
        more["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        for call in more["tool_calls"]:
            call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
        called |= {call.id: call.function.name for call in message.tool_calls}
    elif role == "tool":
        identity = message.tool_call_id
        if identity not in called:
            raise _wrong(f"messages[{i}].tool_call_id: expected the ID of a call before it, got {identity!r}"[:200])
        more = {"tool_call_id": identity, "name": called[identity]}
    if content is None and "tool_calls" not in more:
        raise _wrong(f"messages[{i}].content: expected a text, or a list of text parts, got nothing")
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": content, **more, **named}


def _wrong(message: str) -> RequestError:
    return RequestError(message, parameter="messages")


def tokenized(body: Any, served: ServedModel) -> dict[str, Any]:
    """Return the tokens of a prompt or a conversation as the model reads them, in vLLM's format."""
    request, tokenizer = TokenizeRequest.read(body, served), served.tokenizer
    prompt, messages = request.prompt, request.messages
    if messages is not None and prompt is None:
        model = speaker(served)
        tokens = conversation(request, tools_of(request, body.get("tools"), model), model)
    elif prompt is not None and messages is None:
        with errors_of("prompt"):
            tokens = tokenizer.encode(prompt)
        if request.add_special_tokens:
            tokens = tokenizer.framed(tokens, ends=not isinstance(served.model, Decoder))
    else:
        raise invalid("prompt", "expected either prompt or messages")
    return {"count": len(tokens), "max_model_len": served.config.l_max, "tokens": tokens}
