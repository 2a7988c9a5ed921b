"""Errors in the format of OpenAI's API, and responses in JSON."""

import contextlib
import json
from collections.abc import Iterator, Mapping
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


def event(data: Mapping[str, Any]) -> str:
    """Return an event of a stream."""
    return f"data: {json.dumps(data)}\n\n"


def refusal(wrong: RequestError, headers: Mapping[str, str] | None = None) -> JSON:
    """Return the response to a request that is refused."""
    return JSON(wrong.to_json(), status_code=wrong.status, headers=headers)


def check_model(name: str, model: str) -> None:
    """Raise RequestError unless `name` is the name of the model."""
    if name != model:
        message = f"there is no model {name!r}, only {model!r}"
        raise RequestError(message, status=404, parameter="model", code="model_not_found")


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Turn a ValueError into a RequestError about this field."""
    try:
        yield
    except RequestError:
        raise
    except ValueError as wrong:
        raise invalid(name, str(wrong)) from None
