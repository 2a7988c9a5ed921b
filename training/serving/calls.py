"""Calls of tools in answers, as Hermes and Qwen, Mistral, and Llama 3 write them in text, and as OpenAI's API has them.

A model writes calls in the format of its chat template. `format_of` finds which of the `FORMATS` that is, `CallReader`
reads the calls back while the text arrives, and `CallFormat.rules` is a grammar of them.
"""

import dataclasses
import functools
import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from training.data.chat import ChatTemplate, Message
from training.data.records import DataError
from training.data.tokenizers import Tokenizer
from training.generation.grammars import Grammars, of_json
from training.generation.pieces import certain

HEAD = (
    r'[\s\[]*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\\n]|\\["\\/])*")\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""The beginning of a call, up to its arguments; the first group is the name."""
CLOSING = re.compile(r'\s*(?:,\s*"\w+"\s*:\s*"[^"]*"\s*)?\}\s*(?:</tool_call>|\])?')
"""The end of a call, after its arguments."""
DECODER = json.JSONDecoder(strict=False)  # a text in arguments may have line breaks
NAME = "look_up"  # of the tool that shows how a template writes calls
TEXT = r"/(.|\n)*/"
PLAIN = r"/[ \n]*([^ \n{](.|\n)*)?/"  # text that does not begin as an object of JSON


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallFormat:
    """Format: `opens`, `first`, calls (`begin`, name, `middle`, arguments, `end`) with `separator`, and `last`."""

    opens: str  # "": an answer that has a call begins with one
    first: str = ""
    begin: str = '{"name": "'
    middle: str = '", "arguments": '
    end: str = "}"
    separator: str
    last: str = ""
    marks: tuple[str, ...]  # what may be special tokens
    several: bool = True  # whether the template writes more than one call in an answer

    @functools.cached_property
    def first_call(self) -> re.Pattern[str]:
        """The head of a call, where there has been none."""
        begins = re.escape(self.opens) if self.opens else rf"\A\s*(?:{'|'.join(map(re.escape, self.marks))})?"
        return re.compile(begins + HEAD)

    @functools.cached_property
    def next(self) -> re.Pattern[str]:
        """The head of a call after another one."""
        begins = {self.separator.strip(), *filter(None, [self.opens])}
        return re.compile(f"(?:{'|'.join(map(re.escape, sorted(begins)))}){HEAD}")

    def certain(self, text: str) -> int:
        """Return how much of a text belongs to no call, whatever follows, where there has been none."""
        if self.opens:
            return len(certain(text.partition(self.opens)[0], [self.opens]).rstrip())
        start = text.lstrip()
        may_call = start.startswith(("{", *self.marks)) or any(mark.startswith(start) for mark in self.marks)
        return 0 if may_call else len(text)

    def named(self, tokenizer: Tokenizer) -> dict[int, str]:
        """Return the special tokens that belong to calls, and their names."""
        tokens = {mark: tokenizer.special_token(mark) for mark in self.marks}
        return {token: mark for mark, token in tokens.items() if token is not None}

    def rules(self, schemas: Mapping[str, Any], grammars: Grammars, *, several: bool) -> str:
        """Return rules of grammars: `called`, of calls whose arguments have schemas, and `free`, of texts with such."""
        literal, opens = grammars.literal, grammars.literal(self.opens)
        more = f"({literal(self.separator)} call)*" if several and self.several else ""
        found = [
            f"calls: {literal(self.first)} call {more} {literal(self.last)}",
            f"called: {opens} calls",
            f"call: {' | '.join(f'call_{i}' for i in range(len(schemas)))}",
        ]
        for i, (name, schema) in enumerate(schemas.items()):
            call = f"{literal(self.begin + name + self.middle)} arguments_{i} {literal(self.end)}"
            found += [f"call_{i}: {call}", f"arguments_{i}: {of_json(schema)}"]
        if not opens:
            return "\n".join([*found, "free: calls | PLAIN", f"PLAIN: {PLAIN}"])
        opened = "opened: TEXT" if opens.startswith("<") else "opened[lazy]: TEXT"
        return "\n".join([*found, f"{opened} {opens}", "free: (opened calls)? TEXT", f"TEXT: {TEXT}"])


HERMES = CallFormat(
    opens="<tool_call>",
    first="\n",
    end="}\n</tool_call>",
    separator="\n<tool_call>\n",
    marks=("<tool_call>", "</tool_call>"),
)
MISTRAL = CallFormat(opens="[TOOL_CALLS]", first=" [", separator=", ", last="]", marks=("[TOOL_CALLS]",))
LLAMA = CallFormat(opens="", middle='", "parameters": ', separator="; ", marks=("<|python_tag|>",))
FORMATS = (HERMES, MISTRAL, LLAMA)
"""Formats of Hermes and Qwen, of Mistral, and of Llama 3."""


class Delta(NamedTuple):
    """The content and calls in new text of an answer."""

    content: str = ""  # text that belongs to no call
    calls: tuple[dict[str, Any], ...] = ()  # parts of calls, as OpenAI's API streams them


class CallReader:
    """Reads an answer's text as it arrives. What only begins like a call, or calls no offered tool, is content."""

    def __init__(self, form: CallFormat, tools: Collection[str], *, several: bool) -> None:
        """Begin an answer that may call these tools by name; without `several`, calls after the first are left out."""
        self._form, self._tools, self._several = form, frozenset(tools), several
        self._held = ""  # text that may become a part of a call
        self._arguments: str | None = None  # those of a call, so far
        self.n = 0  # calls begun
        self._may_call = True

    def add(self, text: str, *, is_last: bool = False) -> Delta:
        """Read more text, which may be the last, and return what it tells."""
        self._held += text
        content, calls = "", list[dict[str, Any]]()
        while True:
            if self._arguments is None:
                head = self._next() if self._may_call else None
                if head is None:
                    return Delta(content + self._content(is_last), tuple(calls))
                content += self._between(self._held[: head.start()])
                calls.append(self._begun(head))
            new, is_whole = self._argument_text()
            if calls and calls[-1]["index"] == self.n - 1:
                calls[-1]["function"]["arguments"] += new
            elif new:
                calls.append({"index": self.n - 1, "function": {"arguments": new}})
            if not is_whole:
                return Delta(content, tuple(calls))

    def _next(self) -> re.Match[str] | None:
        """Return the head of the next call in the text, if it is there."""
        heads = (self._form.next if self.n else self._form.first_call).finditer(self._held)
        return next((head for head in heads if json.loads(head[1]) in self._tools), None)

    def _begun(self, head: re.Match[str]) -> dict[str, Any]:
        self._held, self._arguments, self.n = self._held[head.end() :], "", self.n + 1
        self._may_call = self._several
        function = {"name": json.loads(head[1]), "arguments": ""}
        identity = secrets.token_hex(5)[:9]  # templates of Mistral take only nine letters and digits
        return {"index": self.n - 1, "id": identity, "type": "function", "function": function}

    def _argument_text(self) -> tuple[str, bool]:
        """Return what has arrived of the arguments, and whether these are whole."""
        so_far = self._arguments or ""
        text, self._held, self._arguments = so_far + self._held, "", None
        try:
            _, end = DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            self._arguments = text
            return text[len(so_far) :], False
        self._held = text[end:]
        return text[len(so_far) : end], True

    def _content(self, is_last: bool) -> str:
        """Return the text that belongs to no call."""
        if is_last:
            head = self._next() if self.n else None
            return self._between(self._held[: head.start() if head else None]) if self.n else self._held
        n = 0 if self.n else self._form.certain(self._held)
        text, self._held = self._held[:n], self._held[n:]
        self._may_call &= bool(self._form.opens or not n)
        return text

    def _between(self, text: str) -> str:
        """Return a text before a call, or after one, without the white space and the brackets of calls."""
        text = CLOSING.sub("", text, count=1) if self.n else text
        return text.rstrip()


def format_of(tokenizer: Tokenizer) -> CallFormat | None:
    """Return how the model's chat template writes calls; None if it has none, or writes them in a way of its own."""
    template = ChatTemplate.of(tokenizer)
    question = [{"role": "user", "content": "question"}]
    call = {"name": NAME, "arguments": {"place": "here"}}
    tool = {"name": NAME, "description": NAME, "parameters": {"type": "object", "properties": {}}}

    def rendered(messages: Sequence[Message], *, prompts: bool) -> str:
        tools = [{"type": "function", "function": tool}]
        return template.render(messages, add_generation_prompt=prompts, tools=tools).text

    def answer(n: int) -> str:
        calls = [{"id": f"call{i:05d}", "type": "function", "function": call} for i in range(n)]
        messages = [*question, {"role": "assistant", "content": None, "tool_calls": calls}]
        return rendered(messages, prompts=False).removeprefix(prompt)

    def is_written(form: CallFormat, n: int) -> bool:
        try:
            read = CallReader(form, [NAME], several=True).add(answer(n), is_last=True)
        except DataError:  # it refuses this conversation
            return False
        return [json.loads(part["function"]["arguments"]) for part in read.calls] == n * [call["arguments"]]

    try:
        prompt = rendered(question, prompts=True)
    except DataError:  # a template for other conversations
        return None
    forms = [form for form in FORMATS if NAME in prompt and is_written(form, 1)]
    return dataclasses.replace(forms[0], several=is_written(forms[0], 2)) if forms else None
