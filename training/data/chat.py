"""Conversations as text: the template that came with a model, rendered as `transformers` renders it.

    template = ChatTemplate.of(tokenizer)
    text = template.render([{"role": "user", "content": "What is the capital of France?"}])
    tokens = tokenizer.encode_markup(text)

A template is a program in jinja2. In a run it is part of the tokenizer (`Tokenizer.chat_template`, in tokenizer.json);
beside a checkpoint it is chat_template.jinja, or a field of tokenizer_config.json; in GGUF it is a field. It runs in a
process of its own, with limits on time, memory and output: see `training.data.chat_worker`.
"""

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.data.records import DataError
from training.data.tokenizers import LibraryTokenizer, Tokenizer

ROLES = ("system", "user", "assistant", "tool")
SECONDS = 2
"""Of processor time for a rendering, which takes a millisecond."""
_WORKER = Path(__file__).with_name("chat_worker.py")

Message = Mapping[str, Any]


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str  # the rendered conversation
    # for each message of the assistant, the span of characters that the model is to write: from after its header to its
    # end token, included
    answers: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A template of conversations.

    Attributes:
        text: the template.
        tokens: special tokens by the names that templates use, such as bos_token.
        ends: the texts of the tokens that end an answer.
    """

    def __init__(self, text: str, tokens: Mapping[str, str] | None = None, ends: Sequence[str] = ()) -> None:
        """Make a template of special tokens' texts, by their names in it, and the texts of those that end an
        answer, which are eos_token unless given. Nothing is rendered yet.
        """
        self.text, self.tokens = text, dict(tokens or {})
        self.ends = tuple(ends) or tuple(t for name, t in self.tokens.items() if name == "eos_token")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        """Return the template that came with a tokenizer. Raises DataError if none did: the model was not trained to
        converse.
        """
        if tokenizer.chat_template is None or not isinstance(tokenizer, LibraryTokenizer):
            raise DataError(
                "the model has no chat template: it was not trained to converse; "
                "give a prompt to continue, or take a model of instructions"
            )
        special, name_of = tokenizer.special, tokenizer.inner.id_to_token
        named = {"bos_token": special.bos, "eos_token": special.eos} if special else {}
        texts = {name: name_of(token) for name, token in named.items() if token is not None}
        ends = [name_of(token) for token in (special.eos, *special.ends) if token is not None] if special else []
        return cls(
            tokenizer.chat_template,
            {name: text for name, text in texts.items() if text is not None},
            [text for text in ends if text is not None],
        )

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """Return a conversation as the model reads it, asked to speak next if `add_generation_prompt`; `variables` are
        what else the template reads, such as tools. Raises DataError if the conversation is not one that the template
        takes, or the template is at fault; or jinja2 is missing.
        """
        check_messages(messages, answered=not add_generation_prompt)
        return self._ask(messages, add_generation_prompt, variables)["text"]

    def render_with_answers(self, messages: Sequence[Message], **variables: Any) -> Rendered:
        """Return a conversation in which the assistant speaks last as text, like `render`, with the spans of its
        messages. Raises DataError as `render`, and if there is no message of the assistant, or it cannot be located in
        the text.
        """
        check_messages(messages, answered=True)
        said = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not said:
            raise DataError("the conversation has no message of the assistant, which a model could learn to write")
        whole = self._ask(messages, False, variables)
        text, spans = whole["text"], [tuple(span) for span in whole["spans"]]
        if not spans:
            spans = [self._span(text, messages, i, variables) for i in said]
        return Rendered(text, tuple(spans))

    def _span(self, text: str, messages: Sequence[Message], i: int, variables: Mapping[str, Any]) -> tuple[int, int]:
        """The span of message i, the assistant's, in the text: from after its header."""
        asked, said = (self._ask(messages[:n], n == i, variables)["text"] for n in (i, i + 1))
        content = (messages[i]["content"] or "").strip()
        found = text.find(content, len(asked))
        behind = found + len(content)
        limit = len(said) if text.startswith(said) else len(text)  # it may be written otherwise where it is the last
        ends = [(at, at + len(end)) for end in self.ends if (at := text.find(end, behind, limit)) >= 0]
        if not text.startswith(asked) or found < 0 or behind > limit or not (ends or text.startswith(said)):
            raise DataError(
                f"the chat template does not write the answer {content[:40]!r} between what asks for it and an end "
                "token, so where it begins and ends is not known; mark it there: {% generation %} … {% endgeneration %}"
            )
        return len(asked), min(ends)[1] if ends else limit

    def _ask(self, messages: Sequence[Message], prompted: bool, variables: Mapping[str, Any]) -> dict[str, Any]:
        given = {"tools": None, "documents": None, **self.tokens, **variables}
        given |= {"messages": [dict(message) for message in messages], "add_generation_prompt": prompted}
        try:
            request = json.dumps({"template": self.text, "variables": given})
        except (TypeError, ValueError) as error:
            raise DataError(f"a message or a variable of the chat template is not JSON: {error}") from None
        with self._lock:
            reply = self._exchange(request)
        if "error" in reply:
            line = f" (line {reply['line']})" if reply.get("line") else ""
            raise DataError(f"the chat template refuses the conversation or is at fault{line}: {reply['error']}")
        return reply

    def _exchange(self, request: str) -> dict[str, Any]:
        """Send a line to the worker, starting it if need be, and return its answer."""
        if self._process is None:
            self._process = _start()
            weakref.finalize(self, _stop, self._process)
        process = self._process
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return json.loads(line)
        self._process = None
        _stop(process)
        if process.returncode == -signal.SIGPROF:
            return {"error": f"it takes longer than {SECONDS} s"}
        return {"error": f"its process ended with status {process.returncode}"}


def converser(tokenizer: Tokenizer) -> Callable[[Sequence[Message]], list[int]]:
    """Return what writes conversations as the tokens that the next answer follows, by the template that a tokenizer
    came with. Raises DataError if it came with none.
    """
    template = ChatTemplate.of(tokenizer)
    assert isinstance(tokenizer, LibraryTokenizer)
    return lambda messages: tokenizer.encode_markup(template.render(messages))


def _start() -> subprocess.Popen[str]:
    if importlib.util.find_spec("jinja2") is None:
        raise DataError("a chat template needs jinja2: pip install 'formal-algorithms[models]'")
    return subprocess.Popen(
        [sys.executable, "-P", str(_WORKER), str(SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process by closing its input."""
    for stream in (process.stdin, process.stdout):
        if stream:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()


def check_messages(messages: Sequence[Message], *, answered: bool) -> None:
    """Refuse what is not a conversation. If `answered`, the assistant may speak last; otherwise it is to speak next.
    Raises DataError, which names the message, numbered from 1.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError(f"messages: expected a list of at least one message, got {str(messages)[:60]}")
    for number, message in enumerate(messages, start=1):
        if problems := list(_problems(message, number)):
            raise DataError(f"message {number}: {problems[0]}")
    if not answered and messages[-1]["role"] == "assistant":
        raise DataError(
            f"message {len(messages)}: expected the user to speak last, got the assistant; add what it is to answer"
        )


def _problems(message: Any, number: int) -> Iterator[str]:
    if not isinstance(message, Mapping):
        yield f'expected an object {{"role": "…", "content": "…"}}, got {str(message)[:60]}'
        return
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        yield f"role: expected one of {', '.join(ROLES)}, got {str(role)[:60]!r}"
    elif role == "system" and number > 1:
        yield "role: expected system to come first, got it after other messages"
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        yield f"content: expected a text, got {'nothing' if content is None else str(content)[:60]}"
