"""Tokenization requests in vLLM's format: a prompt or a conversation in, tokens out."""

from typing import Any

from training.serving.chat import conversation
from training.serving.errors import RequestError
from training.serving.fields import boolean, check_fields, check_model, errors_of
from training.serving.served import Decoder, Served


def tokenized(body: Any, served: Served) -> dict[str, Any]:
    """Return the answer to a request: the tokens as the model reads them, their number, and the most it can read.
    Raises RequestError if a field is unknown or invalid.
    """
    check_fields(body, ("model", "prompt", "messages", "add_special_tokens"), {})
    if body.get("model") is not None:
        check_model(body["model"], served.name)
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise RequestError("prompt: expected either prompt or messages", parameter="prompt")
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
