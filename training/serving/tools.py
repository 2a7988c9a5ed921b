"""What a chat request asks of the form of its answer: calls of `tools`, and JSON by `response_format`."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.generation.grammars import Grammar, of_json
from training.serving.calls import CallFormat, CallReader
from training.serving.fields import boolean, errors_of, invalid
from training.serving.served import Decoder, Served

NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
ANY_OBJECT = {"type": "object"}


class Tools(NamedTuple):
    """The tools that an answer may call."""

    form: CallFormat
    offered: list[dict[str, Any]]  # as in the request
    schemas: dict[str, Any]  # what the arguments of each have to follow, by the names of those that may be called
    is_called: bool  # whether the answer has to be a call
    is_strict: bool  # whether any arguments have to follow a schema, besides being an object
    several: bool  # whether the answer may have more than one call

    def reader(self) -> CallReader:
        """Return what reads the calls in an answer."""
        return CallReader(self.form, self.schemas, several=self.several)


def tools_of(body: Mapping[str, Any], model: Decoder) -> Tools | None:
    """Return the tools of a request; None if there are none to call. Raises RequestError if a field is invalid."""
    offered, choice = body.get("tools") or [], body.get("tool_choice")
    several = boolean(body, "parallel_tool_calls", default=True)
    if not isinstance(offered, list) or not all(map(_is_function, offered)):
        raise invalid("tools", 'expected a list of {"type": "function", "function": {"name": …, "parameters": …}}')
    functions = {tool["function"]["name"]: tool["function"] for tool in offered}
    if wrong := [name for name in functions if not NAME.fullmatch(name)]:
        raise invalid("tools", f"expected names of at most 64 letters, digits, _, . and -, got {wrong[0][:80]!r}")
    if len(functions) < len(offered):
        raise invalid("tools", "expected a name of its own for each tool")
    name = _chosen(choice, functions)
    if choice == "none" or not functions:
        return None
    if model.calls is None:
        raise invalid(
            "tools", "the chat template shows no tools to the model, or writes calls in an unknown way: leave them out"
        )
    is_called = choice == "required" or name is not None
    schemas = {
        each: function.get("parameters") or ANY_OBJECT if is_called or function.get("strict") else ANY_OBJECT
        for each, function in functions.items()
        if name in (None, each)
    }
    is_strict = any(schema is not ANY_OBJECT for schema in schemas.values())
    return Tools(model.calls, offered, schemas, is_called, is_strict, several and name is None)


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    known = isinstance(function.get("parameters"), dict | None) and isinstance(function.get("description"), str | None)
    return known and isinstance(function.get("strict"), bool | None)


def _chosen(choice: Any, functions: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that has to be called; None if there is no such tool."""
    if choice in (None, "none", "auto"):
        return None
    if not functions:
        raise invalid("tool_choice", "expected tools beside it")
    if choice == "required":
        return None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in functions:
        named = '{"type": "function", "function": {"name": …}} with the name of a tool'
        raise invalid("tool_choice", f"expected none, auto, required or {named}, got {choice!r}"[:200])
    return name


def _schema(form: Any) -> dict[str, Any] | None:
    """Return the schema that an answer has to follow by `response_format`; None for any text."""
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    given = form.get("json_schema") if kind == "json_schema" else None
    if not isinstance(given, dict) or not isinstance(given.get("schema"), dict):
        known = '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}'
        raise invalid("response_format", f"expected the type text or json_object, or {known}")
    return given["schema"]


def grammar_of(body: Mapping[str, Any], tools: Tools | None, ends: tuple[int, ...], served: Served) -> Grammar | None:
    """Return the grammar of the answer to a request, which the tokens `ends` may end; None if it is any text."""
    schema, rules, starts, model = _schema(body.get("response_format")), [], [], served.model
    assert isinstance(model, Decoder)
    if tools is not None and (tools.is_called or tools.is_strict or schema is not None):
        rules.append(tools.form.rules(tools.schemas, model.grammars, several=tools.several))
        starts.append("called" if tools.is_called or schema is not None else "free")
    if schema is not None and not (tools and tools.is_called):
        rules.append(f"answer: {of_json(schema)}")
        starts.append("answer")
    if not starts:
        return None
    if body.get("no_repeat_ngram_size"):
        raise invalid("no_repeat_ngram_size", "expected 0, as it may forbid what response_format or tools require")
    with errors_of("response_format" if "answer" in starts else "tools"):
        return model.grammars.of("\n".join([f"start: {' | '.join(starts)}", *rules]), ends)
