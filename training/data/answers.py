"""Positions of the answers in a rendered conversation: what the assistant writes, up to and including its end token.

Templates end an answer in different ways: with a token of its own, with another one after the last answer (gpt-oss), or
only before the next message (GLM), which is appended to the last answer here. None of them need say where an answer
is, but may, with `{% generation %}` blocks; an end token that follows a block belongs to the answer, too.
"""

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from training.data.chat import ChatTemplate, Message, Rendered, check_messages
from training.data.markup import unused
from training.data.records import DataError


def render_with_answers(template: ChatTemplate, messages: Sequence[Message], **variables: Any) -> Rendered:
    """Return a conversation in which the assistant speaks last, and the spans of its messages. Raises DataError."""
    check_messages(messages, answered=True)
    if all(message["role"] != "assistant" for message in messages):
        raise DataError("the conversation has no assistant message, so there is nothing to learn; add an answer")
    whole = template.reply(messages, variables=variables)
    return _Conversation(template, messages, variables, whole["now"]).with_answers(whole)


class _Conversation(NamedTuple):
    template: ChatTemplate
    messages: Sequence[Message]
    variables: Mapping[str, Any]
    now: float  # a template may ask for the date, and all renderings have the same

    def with_answers(self, whole: Mapping[str, Any]) -> Rendered:
        text = whole["text"]
        plain = self.template.plain(whole, self.messages, prompted=False, variables=self.variables)
        closing = self._closing()
        if whole["spans"]:
            spans = [(begin, self._ended(text, begin, end, closing)) for begin, end in whole["spans"]]
        else:
            spans = self._spans(text, closing)
        begin, end = spans[-1]
        if not self.messages[-1].get("tool_calls") and not text[begin:end].rstrip().endswith(closing):
            text += (ending := self._next_end(text))
            spans[-1] = begin, len(text) if ending else end
        return Rendered(text, tuple(spans), plain)

    def _reply(self, messages: Sequence[Message], prompted: bool = False) -> dict[str, Any]:
        return self.template.reply(messages, prompted=prompted, variables=self.variables, now=self.now)

    def _answers(self) -> list[int]:
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    def _closing(self) -> tuple[str, ...]:
        """Return the tokens that can end an answer: the model's, and those that end a message before the first."""
        before = self._reply(self.messages[: self._answers()[0]])["text"]
        others = (t for t in self.template.controls if t not in before or before.rstrip().endswith(t))
        return tuple(dict.fromkeys((*self.template.ends, *others)))

    def _ended(self, text: str, begin: int, end: int, closing: Sequence[str]) -> int:
        """Return the end of a span, moved behind the end token that follows, if the span has none."""
        after = len(text) - len(text[end:].lstrip())
        following = [after + len(token) for token in closing if text.startswith(token, after)]
        return end if text[begin:end].rstrip().endswith(self.template.ends) else max(following, default=end)

    def _spans(self, text: str, closing: Sequence[str]) -> list[tuple[int, int]]:
        """Return the spans of the assistant's messages in the text, without their headers."""
        contents, spans = self._contents(text), []
        for i in self._answers():
            message, prompt = self.messages[i], self._reply(self.messages[:i], prompted=True)["text"]
            content = (message["content"] or "").strip()
            at, limit = contents.get(i, -1 if content else len(prompt)), contents.get(i + 1, len(text))
            ends = [found + len(end) for end in self.template.ends if (found := text.find(end, at, limit)) >= 0]
            end = min(ends) if ends else at if message.get("tool_calls") else self._ended(text, at, at, closing)
            if end == at:
                end = self._common(text, self._reply(self.messages[: i + 1])["text"], at)
            if not text.startswith(prompt) or not len(prompt) <= at <= end:
                raise DataError(
                    f"the chat template does not write the answer {content[:40]!r} between its prompt and an end "
                    "token, so the answer cannot be located; mark it in the template: {% generation %} … "
                    "{% endgeneration %}"
                )
            spans.append((len(prompt), end))
        return spans

    def _contents(self, text: str) -> dict[int, int]:
        """Return where each answer's content ends and each other message's begins in the text, by marks there."""
        mark = unused(json.dumps([self.messages, self.variables], ensure_ascii=False) + self.template.text)

        def marked(i: int, message: Message) -> Message:
            content = message["content"] or ""
            begin, end = len(content) - len(content.lstrip()), len(content.rstrip())
            at = end if message["role"] == "assistant" else begin
            return {**message, "content": f"{content[:at]}{mark}{i}{mark}{content[at:]}"} if begin < end else message

        parts = re.split(
            f"{mark}(\\d+){mark}", self._reply([*itertools.starmap(marked, enumerate(self.messages))])["text"]
        )
        if "".join(parts[::2]) != text:
            return {}
        places = itertools.accumulate(map(len, parts[::2]))
        return {int(i): place for i, place in reversed([*zip(parts[1::2], places, strict=False)])}

    def _common(self, text: str, answered: str, at: int) -> int:
        """Return where a text ceases to be one that ends with an answer, whose content ends at `at`."""
        end = len(os.path.commonprefix([text, answered]))  # noqa: RUF071 (of characters, as wanted)
        tokens = (*self.template.controls, *self.template.ends)
        places = [(end - n, token) for token in tokens for n in range(1, min(len(token), end - at + 1))]
        end = min((i for i, token in places if text.startswith(token, i) or answered.startswith(token, i)), default=end)
        kept = text[:end].rstrip()
        return len(kept) if len(kept) > at and kept.endswith(tokens) else end

    def _next_end(self, text: str) -> str:
        """Return the end token, with the space before it, that a message of the user would write after the text."""
        try:
            longer = self._reply([*self.messages, {"role": "user", "content": "question"}])["text"]
        except DataError:  # a template for other conversations
            return ""
        after = longer.removeprefix(text) if longer.startswith(text) else ""
        space = len(after) - len(after.lstrip())
        return next((after[: space + len(end)] for end in self.template.ends if after.startswith(end, space)), "")
