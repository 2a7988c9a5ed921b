"""Conversations as text: renders the chat template that came with a model, as `transformers` does.

    text = ChatTemplate.of(tokenizer).render([{"role": "user", "content": "What is the capital of France?"}])

A template is a jinja2 program. A run stores it with the tokenizer (`Tokenizer.chat_template`, in tokenizer.json); a
checkpoint has it in chat_template.jinja or in a field of tokenizer_config.json; GGUF has it in a field. It runs in a
separate process, with limits on time, memory and output: see `training.data.chat_worker`.
"""

import contextlib
import copy
import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.data.markup import marked, unmarked, unused
from training.data.records import DataError
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import LibraryTokenizer, Tokenizer
from training.extras import install, unsafe
from training.system import OUT_OF_TIME

ROLES = ("system", "user", "assistant", "tool")
SECONDS = 2  # limit on the processor time of one rendering, which usually takes a millisecond
_WORKER = "training.data.chat_worker"
_ROOT = str(Path(__file__).parents[2])

Message = Mapping[str, Any]


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str  # the rendered conversation
    # for each assistant message, the span of characters that the model should write: from after the header to the end
    # token, inclusive
    answers: tuple[tuple[int, int], ...] = ()
    plain: tuple[int, ...] = ()  # where a message begins to spell a control token: see `training.data.markup`


class ChatTemplate:
    """A chat template, the texts of its special tokens by name, of those that end an answer, and of control tokens."""

    def __init__(
        self,
        text: str,
        tokens: Mapping[str, str] | None = None,
        ends: Sequence[str] = (),
        controls: Iterable[str] = (),
        *,
        messages_are_markup: bool = False,
    ) -> None:
        self.controls, self._messages_are_markup = tuple(controls), messages_are_markup
        self.text, self.tokens = text, dict(tokens or {})
        self.ends = tuple(ends) or tuple(t for name, t in self.tokens.items() if name == "eos_token")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        """Return a tokenizer's chat template. Raises DataError if it has none, so the model cannot converse."""
        if tokenizer.chat_template is None or not isinstance(tokenizer, LibraryTokenizer):
            raise DataError(
                "the model has no chat template: it was not trained to converse; "
                "give a prompt to continue, or use an instruction-tuned model"
            )
        special = tokenizer.special or SpecialTokens(tokenizer.N_V)
        ids = special.bos, special.eos, *special.ends
        bos, eos, *ends = (None if i is None else tokenizer.inner.id_to_token(i) for i in ids)
        tokens = {name: text for name, text in (("bos_token", bos), ("eos_token", eos)) if text is not None}
        return cls(
            tokenizer.chat_template,
            tokens,
            [text for text in (eos, *ends) if text is not None],
            tokenizer.markup.names.values(),
            messages_are_markup=tokenizer.messages_are_markup,
        )

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> Rendered:
        """Return a conversation as the model reads it; `variables` are the template's others. Raises DataError."""
        check_messages(messages, answered=not add_generation_prompt)
        given = {"prompted": add_generation_prompt, "variables": variables}
        whole = self.reply(messages, **given)
        return Rendered(whole["text"], plain=self.plain(whole, messages, **given))

    def plain(
        self, whole: Mapping[str, Any], messages: Sequence[Message], *, prompted: bool, variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Return where messages and variables spell control tokens in `whole`, a reply, by marking them there."""
        given = {"messages": messages, "variables": variables}
        controls = () if self._messages_are_markup else self.controls
        mark = unused(json.dumps(given, ensure_ascii=False) + self.text) if controls else ""
        with_marks = marked(given, controls, mark) if controls else given
        if with_marks == {"messages": [*messages], "variables": variables}:
            return ()
        given = {"prompted": prompted, "variables": with_marks["variables"], "now": whole["now"]}
        reply = self.reply(with_marks["messages"], **given)
        same, places = unmarked(reply["text"], mark)
        if same != whole["text"]:
            raise DataError(
                "a message spells a control token, and the chat template changes such a text: leave it out, or allow "
                "control tokens in messages (--messages-are-markup)"
            )
        return places

    def reply(
        self,
        messages: Sequence[Message],
        *,
        prompted: bool = False,
        variables: Mapping[str, Any],
        now: float | None = None,
    ) -> dict[str, Any]:
        """Return the worker's reply: the text, its spans of answers, and the time, `now` if given."""
        given = {"tools": None, "documents": None, **self.tokens, **variables}
        given |= {"messages": [dict(message) for message in messages], "add_generation_prompt": prompted}
        try:
            request = json.dumps({"template": self.text, "variables": given, "now": now})
        except (TypeError, ValueError) as error:
            raise DataError(f"a message or a variable of the chat template is not JSON: {error}") from None
        with self._lock:
            reply = self._exchange(request)
        if "error" in reply:
            line = f" (line {reply['line']})" if reply.get("line") else ""
            raise DataError(f"the chat template refuses the conversation or raises an error{line}: {reply['error']}")
        return reply

    def _exchange(self, request: str) -> dict[str, Any]:
        """Send a line to the worker, started if necessary, and return its reply."""
        if self._process is None:
            self._process = _start()
            weakref.finalize(self, _stop, self._process)
        process = self._process
        assert process.stdin
        assert process.stdout
        self._process = None  # until its reply is read, which an interrupt may prevent
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            process.kill()
            _stop(process)
            raise
        if line:
            self._process = process
            return json.loads(line)
        _stop(process)
        if process.returncode == OUT_OF_TIME:
            return {"error": f"it takes longer than {SECONDS} s"}
        return {"error": f"its process ended with status {process.returncode}"}


def with_markup(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer for messages that may contain control tokens, or raise DataError without a chat template."""
    if tokenizer.chat_template is None or not isinstance(tokenizer, LibraryTokenizer):
        raise DataError("--messages-are-markup: expected a model with a chat template, got none; leave it out")
    changed = copy.copy(tokenizer)
    changed.messages_are_markup = True
    return changed


def converser(tokenizer: Tokenizer) -> Callable[..., list[int]]:
    """Return the function from a conversation and variables of its template to a prompt, or raise DataError."""
    template = ChatTemplate.of(tokenizer)
    assert isinstance(tokenizer, LibraryTokenizer)

    def converse(messages: Sequence[Message], **variables: Any) -> list[int]:
        rendered = template.render(messages, **variables)
        return tokenizer.encode_markup(rendered.text, rendered.plain)

    return converse


def ends_of_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special token that the chat template writes after an answer, if there is one."""
    template, answer = ChatTemplate.of(tokenizer), "answer"
    try:
        turn = [{"role": "user", "content": "question"}, {"role": "assistant", "content": answer}]
        _, found, after = template.render(turn, add_generation_prompt=False).text.rpartition(answer)
    except DataError:  # a template for other conversations
        return ()
    tokens = tokenizer.encode_markup(after.lstrip()) if found else []
    return tuple(tokens[:1]) if tokens and tokenizer.is_special(tokens[0]) else ()


def _start() -> subprocess.Popen[str]:
    if importlib.util.find_spec("jinja2") is None:
        raise DataError(f"a chat template needs jinja2: {install('models')}")
    if problem := unsafe("jinja2", least="3.1.6", because="from whose sandbox a template can escape"):
        raise DataError(f"a chat template: {problem}")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _WORKER, str(SECONDS)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """End the worker by closing its input."""
    for stream in (process.stdin, process.stdout):
        if stream:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()


def check_messages(messages: Sequence[Message], *, answered: bool) -> None:
    """Raise DataError unless `messages` is a conversation; the assistant may speak last only if `answered`."""
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError(f"messages: expected a list of at least one message, got {str(messages)[:60]}")
    for number, message in enumerate(messages, start=1):
        if problem := _problem(message, number):
            raise DataError(f"message {number}: {problem}")
    if not answered and messages[-1]["role"] == "assistant":
        raise DataError(
            f"message {len(messages)}: expected the user to speak last, got the assistant; add a message to answer"
        )


def _problem(message: Any, number: int) -> str | None:
    if not isinstance(message, Mapping):
        return f'expected an object {{"role": "…", "content": "…"}}, got {str(message)[:60]}'
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        return f"role: expected one of {', '.join(ROLES)}, got {str(role)[:60]!r}"
    if role == "system" and number > 1:
        return "role: expected system to come first, got it after other messages"
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        return f"content: expected a text, got {'nothing' if content is None else str(content)[:60]}"
    return None
