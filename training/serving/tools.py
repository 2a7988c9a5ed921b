"""Constraints on the form of a chat answer: calls of `tools`, and JSON by `response_format`."""

import re
from typing import Any, NamedTuple

from training.generation.grammars import Grammar, of_json
from training.serving.calls import CallFormat, CallReader
from training.serving.errors import errors_of, invalid
from training.serving.requests import CHOICES, ChatRequest, ChosenTool, ForTemplate, ResponseFormat
from training.serving.served import Decoder

NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
ANY_OBJECT = {"type": "object"}
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
PARAMETERS = ("type", "properties", "required", "title", "description", "$schema")  # of a list of parameters


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


def tools_of(request: ForTemplate, offered: Any, model: Decoder) -> Tools | None:
    """Return the tools of a request, `offered` as JSON; None if there are none to call. Raises RequestError."""
    functions = {tool.function.name: tool.function for tool in request.tools}
    if wrong := [name for name in functions if not NAME.fullmatch(name)]:
        raise invalid("tools", f"expected names of at most 64 letters, digits, _, . and -, got {wrong[0][:80]!r}")
    if len(functions) < len(request.tools):
        raise invalid("tools", "expected a name of its own for each tool")
    choice = request.tool_choice
    name = choice.function.name if isinstance(choice, ChosenTool) else None
    if not functions and (name or choice == "required"):
        raise invalid("tool_choice", "expected tools beside it")
    if name is not None and name not in functions:
        raise invalid("tool_choice", f"expected {CHOICES}, got {name[:80]!r}")
    if choice == "none" or not functions:
        return None
    if model.calls is None:
        raise invalid(
            "tools", "the chat template shows no tools to the model, or writes calls in an unknown way: leave them out"
        )
    is_called = choice == "required" or name is not None
    schemas = {
        each: _of_arguments(each, function.parameters or {}) if is_called or function.strict else ANY_OBJECT
        for each, function in functions.items()
        if name in (None, each)
    }
    is_strict = any(schema is not ANY_OBJECT for schema in schemas.values())
    return Tools(model.calls, offered, schemas, is_called, is_strict, request.parallel_tool_calls and name is None)


def _of_arguments(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments of a tool: an object, and an empty one where no parameters are named."""
    if {*parameters} <= {*PARAMETERS} and not parameters.get("properties"):
        return NO_PARAMETERS
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise invalid("tools", f"expected parameters of {name} with the type object, got {str(kind)[:80]}")
    return {**parameters, "type": "object"}


def _schema(form: ResponseFormat | None) -> dict[str, Any] | None:
    """Return the schema that an answer has to follow; None for any text."""
    if form is None or form.type == "text":
        return None
    return ANY_OBJECT if form.json_schema is None else form.json_schema.of_answer


def grammar_of(request: ChatRequest, tools: Tools | None, ends: tuple[int, ...], model: Decoder) -> Grammar | None:
    """Return the grammar of the answer to a request, which the tokens `ends` may end; None if it is any text."""
    schema, rules, starts = _schema(request.response_format), [], []
    if tools is not None and (tools.is_called or tools.is_strict or schema is not None):
        rules.append(tools.form.rules(tools.schemas, model.grammars, several=tools.several))
        starts.append("called" if tools.is_called or schema is not None else "free")
    if schema is not None and not (tools and tools.is_called):
        rules.append(f"answer: {of_json(schema)}")
        starts.append("answer")
    if not starts:
        return None
    if request.no_repeat_ngram_size:
        raise invalid("no_repeat_ngram_size", "expected 0, as it may forbid what response_format or tools require")
    with errors_of("response_format" if "answer" in starts else "tools"):
        return model.grammars.of("\n".join([f"start: {' | '.join(starts)}", *rules]), ends)
