"""Renders chat templates in a separate process, so that none can hang, exhaust the memory or write files.

A template is an untrusted program that came with a model. Besides jinja2's sandbox, the kernel limits time, memory and
files, where it can (`training.system`). `training.data.chat` exchanges lines of JSON with this module, which imports
little.
"""

import datetime
import functools
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from training.system import limit_process, time_limit

MEMORY = 1 << 30
LONGEST = 1 << 24
LONGEST_MESSAGE = 300


class Generation(jinja2.ext.Extension):
    """The block ``{% generation %}``, which some templates put around the assistant's messages."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.pieces: list[str] = []
        self.spans: list[tuple[int, int]] = []

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        """Parse a block into a call of `_tracked`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_tracked"), [], [], body).set_lineno(line)

    def _tracked(self, caller: Any) -> str:
        text = caller()
        start = sum(map(len, self.pieces))
        self.spans.append((start, start + len(text)))
        return text

    def render(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Render a template and record the spans of its blocks."""
        self.pieces, self.spans = [], []
        length = 0
        for piece in template.generate(**variables):
            self.pieces.append(piece)
            length += len(piece)
            if length > LONGEST:
                raise jinja2.TemplateError(f"it writes more than {LONGEST} characters")
        return "".join(self.pieces)


class Namespace(jinja2.utils.Namespace):
    """A namespace without private names."""

    def __init__(*arguments: Any, **values: Any) -> None:  # a template may have a value named self
        values = dict(*arguments[1:], **values)
        for name in values:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(arguments[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the name {name!r} is private")


class Dictionary:
    """Templates' `dict`: an instance, since a class would expose its attributes."""

    def __call__(self, *arguments: Any, **values: Any) -> dict[Any, Any]:
        """Return a dictionary."""
        return dict(*arguments, **values)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """Return a dictionary that maps every key to one value."""
        return dict.fromkeys(keys, value)


def raise_exception(message: str) -> None:
    """Let a template refuse a conversation."""
    raise jinja2.TemplateError(message)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return a value as JSON; unlike jinja2's own filter, without escaping for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=16)
def compiled(text: str) -> tuple[jinja2.Template, Generation]:
    """Compile a template in the same environment as transformers, and return it with its `generation` extension."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "dict": Dictionary(), "namespace": Namespace}
    (generation,) = (e for e in environment.extensions.values() if isinstance(e, Generation))
    return environment.from_string(text), generation


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the rendered text with the spans of its blocks and the time, or an error."""
    try:
        template, generation = compiled(request["template"])
        now = datetime.datetime.now() if request["now"] is None else datetime.datetime.fromtimestamp(request["now"])
        text = generation.render(template, {**request["variables"], "strftime_now": now.strftime})
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB of memory"}
    except RecursionError:
        return {"error": "infinite recursion"}
    except Exception as error:  # whatever a template does
        reason = " ".join(str(error)[: 2 * LONGEST_MESSAGE].split()) or type(error).__name__
        return {"error": reason[:LONGEST_MESSAGE], "line": getattr(error, "lineno", None)}
    return {"text": text, "spans": generation.spans, "now": now.timestamp()}


def serve(requests: Iterator[str], answers: TextIO, seconds: float) -> None:
    """Answer each line of `requests`; one that takes longer than `seconds` ends the process."""
    for line in requests:
        with time_limit(seconds):
            reply = json.dumps(answer(json.loads(line)))
        answers.write(reply + "\n")
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    limit_process(MEMORY)
    serve(iter(sys.stdin.readline, ""), sys.stdout, float(sys.argv[1]))
