"""The fields of a request's JSON (unsupported ones are refused), and errors in the format of OpenAI's API."""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from starlette.responses import Response


class RequestError(ValueError):
    """A request cannot be answered: the `status` of HTTP, the invalid `parameter`, and the `code` for clients."""

    def __init__(
        self, message: str, *, status: int = 400, parameter: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code

    def to_json(self) -> dict[str, Any]:
        """Return the error as OpenAI's API has it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}}


def invalid(name: str, what: str, code: str | None = None) -> RequestError:
    """Return the error for a field with an invalid value."""
    return RequestError(f"{name}: {what}", parameter=name, code=code)


class JSON(Response):
    """A response in JSON, escaped to ASCII, so that it can quote any text of a request."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def refusal(wrong: RequestError, headers: Mapping[str, str] | None = None) -> JSON:
    """Return the response to a request that is refused."""
    return JSON(wrong.to_json(), status_code=wrong.status, headers=headers)


def check_fields(body: Any, read: Collection[str], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Check that a request is an object with fields in `read`, and those in `neutral` with values of no effect."""
    if not isinstance(body, dict):
        raise RequestError("expected a JSON object")
    for name, value in body.items():
        if name not in read and name not in neutral:
            raise RequestError(f"unknown parameter {name!r}; expected one of {', '.join(read)}", parameter=name)
        if name in neutral and value not in neutral[name]:
            raise RequestError(f"{name} is not supported: leave it out", parameter=name)


def check_model(name: Any, model: str) -> None:
    """Raise RequestError unless `name` is the name of the model."""
    if name is None:
        raise invalid("model", f"expected {model!r}, got nothing")
    if name != model:
        message = f"there is no model {name!r}, only {model!r}"
        raise RequestError(message, status=404, parameter="model", code="model_not_found")


def integer(body: Mapping[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    """Return an integer field, or the default if it is missing or null. Raises RequestError outside these limits."""
    value = default if body.get(name) is None else body[name]
    if type(value) is not int or not least <= value <= most:
        raise invalid(name, f"expected an integer from {least} to {most}, got {value!r}")
    return value


def number(body: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number field, or the default if it is missing or null. Raises RequestError if it is not a number."""
    value = default if body.get(name) is None else body[name]
    if type(value) not in (int, float):
        raise invalid(name, f"expected a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise invalid(name, "expected a number below 10^308, got one of more digits") from None


def boolean(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a Boolean field, or the default if it is missing or null. Raises RequestError if it is not a Boolean."""
    value = default if body.get(name) is None else body[name]
    if not isinstance(value, bool):
        raise invalid(name, f"expected true or false, got {value!r}")
    return value


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Turn a ValueError into a RequestError about this field."""
    try:
        yield
    except RequestError:
        raise
    except ValueError as wrong:
        raise invalid(name, str(wrong)) from None
