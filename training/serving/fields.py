"""Kinds of fields of a request's JSON, for pydantic. Each says in words what it expects, in errors and schemas."""

import reprlib
from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from training.serving.errors import RequestError, check_model
from training.serving.served import ServedModel


class Described:
    """A field that expects `what`, in words, or in `words` of one server; and of the right type, only what `holds`."""

    def __init__(
        self,
        what: str,
        words: Callable[[ServedModel], str] | None = None,
        holds: Callable[[Any, ServedModel], bool] = lambda *_: True,
    ) -> None:
        self.what, self.words, self.holds = what, words or (lambda _: what), holds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the validation of the field's type, with a readable error."""
        return core_schema.with_info_wrap_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of the field's type, with the words."""
        return {**handler(schema), "description": self.what}

    def _checked(self, value: Any, handler: Any, info: Any) -> Any:
        try:
            read = handler(value)
            if self.holds(read, info.context):
                return read
        except ValidationError as wrong:
            if wrong.errors(include_url=False)[0]["type"] in ("described", "extra_forbidden"):
                raise
        raise PydanticCustomError("described", "described", {"what": self.words(info.context)})


class Within(Described):
    """An integer from `least` to `most`: numbers, or names of limits of the served model."""

    def __init__(self, least: int | str, most: int | str) -> None:
        self._limits = least, most

        def limits(served: ServedModel) -> list[int]:
            return [limit if isinstance(limit, int) else served.limit(limit) for limit in (least, most)]

        def holds(value: int, served: ServedModel) -> bool:
            first, last = limits(served)
            return first <= value <= last

        words = "an integer from {} to {}"
        super().__init__("an integer within the server's limits", lambda served: words.format(*limits(served)), holds)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of an integer, with the limits that all servers share."""
        shared = dict(zip(("minimum", "maximum"), self._limits, strict=True))
        return {**handler(schema), **{name: limit for name, limit in shared.items() if isinstance(limit, int)}}


class Neutral:
    """A field of OpenAI's that this server reads nothing from, and takes with these values alone."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a validation that takes these values."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        """Return the schema of these values."""
        return {"enum": [None, *self._values]}

    def _checked(self, value: Any) -> Any:
        if value not in self._values:
            raise PydanticCustomError("neutral", "neutral")
        return value


Flag = Annotated[bool, Described("true or false")]
Text = Annotated[str, Described("a text")]
Number = Annotated[float, Described("a number below 10^308")]
ModelName = Annotated[str, Described("the name of the model", lambda served: repr(served.name))]
Texts = Annotated[
    str | list[int] | list[str | list[int]],
    Described(
        "a text, tokens, or a list of these, none of them empty",
        lambda served: f"a text, tokens from 0 to {served.limit('N_V') - 1}, or a list of these, none of them empty",
        lambda given, served: all(
            isinstance(one, str) or (one and 0 <= min(one) <= max(one) < served.limit("N_V")) for one in listed(given)
        ),
    ),
]


def listed(given: str | list[int] | list[str | list[int]]) -> list[str | list[int]]:
    """Return several texts or lists of tokens unchanged, and a single one as a list of one."""
    several: Any = given
    return several if isinstance(given, list) and given and isinstance(given[0], str | list) else [several]


class Fields(BaseModel):
    """An object with no other fields than its own; null is as good as nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    @classmethod
    def read(cls, body: Any, served: ServedModel) -> Self:
        """Return the fields of a request's JSON to this server. Raises RequestError if one is unknown or invalid."""
        try:
            found = cls.model_validate(body, context=served)
        except ValidationError as wrong:
            errors = wrong.errors(include_url=False)
            unknown = [error for error in errors if error["type"] == "extra_forbidden"]
            raise cls._refused([*unknown, *errors][0], served) from None
        if (name := getattr(found, "model", None)) is not None:
            check_model(name, served.name)
        return found

    @classmethod
    def _refused(cls, wrong: ErrorDetails, served: ServedModel) -> RequestError:
        if not wrong["loc"]:
            return RequestError("expected a JSON object")
        parameter = str(wrong["loc"][0])
        place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in wrong["loc"]).removeprefix(".")
        match wrong["type"]:
            case "extra_forbidden" if place == parameter:
                message = f"unknown parameter {place!r}; expected one of {', '.join(cls.model_fields)}"
            case "extra_forbidden" | "neutral":
                message = f"{place} is not supported: leave it out"
            case "missing":
                (described,) = (kind for kind in cls.model_fields[parameter].metadata if isinstance(kind, Described))
                message = f"{place}: expected {described.words(served)}, got nothing"
            case _:
                message = f"{place}: expected {wrong.get('ctx', {})['what']}, got {reprlib.repr(wrong['input'])}"
        return RequestError(message, parameter=parameter)
