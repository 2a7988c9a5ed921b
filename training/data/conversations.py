"""Conversations to train on: one line of JSON each; the loss is on the tokens of the answers.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}

The tokenizer's chat template renders them; an answer is what the assistant says, including its end token.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from training.data.answers import render_with_answers
from training.data.chat import ChatTemplate, check_messages
from training.data.records import DataError, Document, EmptyRecordError
from training.data.tokenizers import LibraryTokenizer, Tokenizer

FOLLOWS = {"user": ("assistant",), "assistant": ("user", "tool"), "tool": ("assistant", "tool")}
"""The roles that each role may follow; the user may also begin, or follow the system."""
NO_TEMPLATE = (
    "--data: expected text, as the model has no chat template, got conversations; continue --from an "
    "instruction-tuned model, or give text"
)


def conversation(value: object, where: str) -> Document:
    """Return a conversation. Raises EmptyRecordError if an answer, or the last one, is missing, and DataError."""
    if isinstance(value, Mapping) and value.get("messages", "") in (None, [], ()):
        raise EmptyRecordError("there are no messages")
    if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list | tuple):
        shown = json.dumps(value, default=str)[:80]
        raise DataError(
            f'{where}: expected an object {{"messages": [{{"role": "…", "content": "…"}}, …]}}, got {shown}'
        )
    messages = value["messages"]
    try:
        check_messages(messages, answered=True)
        _check_order([message["role"] for message in messages])
        text = json.dumps({name: value[name] for name in ("messages", "tools") if value.get(name)}, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: a message has a lone surrogate, which is not valid Unicode") from None
    except (DataError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}") from None
    for message in messages:
        says_something = (message.get("content") or "").strip() or "tool_calls" in message
        if message["role"] == "assistant" and not says_something:
            raise EmptyRecordError("an answer is empty")
    if messages[-1]["role"] != "assistant":
        raise EmptyRecordError("the assistant does not speak last")
    return Document(text, where)


def _check_order(roles: list[str]) -> None:
    for i, role in enumerate(roles):
        before = roles[i - 1] if i else None
        first = before in (None, "system")
        if role != "system" and not (role == "user" if first else before in FOLLOWS[role]):
            place = "at first" if before is None else f"after {before}"
            wanted = "user" if first else " or ".join(r for r, others in FOLLOWS.items() if before in others)
            raise DataError(f"message {i + 1}: role: expected {wanted} {place}, got {role}")


class Answers:
    """Tokenizes conversations and marks the tokens of the answers. Raises DataError without a chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.chat_template is None or not isinstance(tokenizer, LibraryTokenizer):
            raise DataError(NO_TEMPLATE)
        self._template, self._tokenizer = ChatTemplate.of(tokenizer), tokenizer

    def encode(self, record: Document) -> tuple[list[int], np.ndarray]:
        """Return a conversation's tokens, and which have a character of an answer. Raises DataError, with its place."""
        state: dict[str, Any] = json.loads(record.text)
        try:
            rendered = render_with_answers(self._template, state.pop("messages"), **state)
            tokens, spans = self._tokenizer.encode_markup_with_spans(rendered.text, rendered.plain)
        except DataError as error:
            raise DataError(f"{record.where}: {error}" if record.where else str(error)) from None
        begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
        answered = np.zeros(len(tokens), bool)
        for begin, end in rendered.answers:
            answered |= (begins < end) & (ends > begin)
        if not answered[1:].any():
            raise DataError(f"{record.where}: the conversation has no token of an answer; add an answer")
        return tokens, answered
