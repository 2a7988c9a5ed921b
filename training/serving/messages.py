"""Conversations in requests, as the model reads them, and requests for tokens."""

import json
from typing import Any

from training.serving.fields import RequestError, boolean, check_fields, check_model, errors_of, invalid
from training.serving.served import Decoder, Served
from training.serving.tools import Tools, tools_of


def conversation(body: dict[str, Any], served: Served) -> tuple[list[int], Tools | None]:
    """Return the tokens of a conversation, up to where the next answer begins, and the tools that it may call. Raises
    RequestError.
    """
    model, messages = served.model, body.get("messages")
    if not isinstance(model, Decoder):
        raise RequestError("the model is an encoder, which cannot answer: use /v1/embeddings")
    if model.converse is None:
        raise RequestError(
            "the model has no template for chat, as it was not trained on conversations: use /v1/completions"
        )
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "expected a list of at least one message")
    tools, called = tools_of(body, model), dict[str, str]()
    read = [_message(i, message, model, called) for i, message in enumerate(messages)]
    with errors_of("messages"):
        return model.converse(read, **({} if tools is None else {"tools": tools.offered})), tools


def _message(i: int, message: Any, model: Decoder, called: dict[str, str]) -> dict[str, Any]:
    """Return a message, given the names of the tools that were called so far, by the IDs of the calls."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _wrong(f"messages[{i}]: expected an object with a role and a content")
    role = "system" if message["role"] == "developer" else message["role"]  # its name in newer models of OpenAI
    known = {"role", "content", "name", *{"assistant": ["tool_calls"], "tool": ["tool_call_id"]}.get(role, [])}
    others = {name for name, value in message.items() if value not in (None, [])} - known
    if others:
        raise _wrong(f"messages[{i}]: {min(others)} is not supported: leave it out")
    content, more = message.get("content"), {}
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if message.get("tool_calls"):
        if model.calls is None:
            raise _wrong(f"messages[{i}]: the chat template writes no tool_calls: leave them out")
        more["tool_calls"] = _calls(i, message["tool_calls"])
        called |= {call["id"]: call["function"]["name"] for call in more["tool_calls"]}
    elif role == "tool":
        identity = message.get("tool_call_id")
        if not isinstance(identity, str) or identity not in called:
            raise _wrong(f"messages[{i}].tool_call_id: expected the ID of a call before it, got {identity!r}"[:200])
        more = {"tool_call_id": identity, "name": called[identity]}
    if not isinstance(content, str) and not (content is None and "tool_calls" in more):
        raise _wrong(f"messages[{i}].content: expected a text, or a list of text parts")
    named = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return {"role": role, "content": content, **more, **named}


def _calls(i: int, calls: Any) -> list[dict[str, Any]]:
    """Return the calls of a message, with their arguments as objects, as templates read them."""
    found = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") if isinstance(call, dict) and call.get("type") == "function" else None
        if not (isinstance(function, dict) and all(isinstance(t, str) for t in (call.get("id"), function.get("name")))):
            form = '{"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
            raise _wrong(f"messages[{i}].tool_calls: expected a list of {form}")
        try:
            arguments = json.loads(function["arguments"])
        except (KeyError, TypeError, ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise _wrong(f"messages[{i}].tool_calls: expected arguments that are an object, as JSON in a text")
        found.append({"id": call["id"], "type": "function", "function": {**function, "arguments": arguments}})
    return found


def _wrong(message: str) -> RequestError:
    return RequestError(message, parameter="messages")


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def tokenized(body: Any, served: Served) -> dict[str, Any]:
    """Return the tokens of a prompt or a conversation as the model reads them, in vLLM's format."""
    check_fields(body, ("model", "prompt", "messages", "tools", "add_special_tokens"), {})
    if body.get("model") is not None:
        check_model(body["model"], served.name)
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise invalid("prompt", "expected either prompt or messages")
    framing, prompt = boolean(body, "add_special_tokens", default=True), body.get("prompt")
    if prompt is None:
        tokens, _ = conversation(body, served)
    elif not isinstance(prompt, str):
        raise RequestError(f"prompt: expected a text, got {prompt!r}"[:200], parameter="prompt")
    else:
        with errors_of("prompt"):
            tokens = served.tokenizer.encode(prompt)
        tokens = served.tokenizer.framed(tokens, ends=not isinstance(served.model, Decoder)) if framing else tokens
    return {"count": len(tokens), "max_model_len": served.config.l_max, "tokens": tokens}
