"""What goes wrong with a request, as clients of OpenAI's API expect to be told."""

import json
from typing import Any

from starlette.responses import Response


class RequestError(ValueError):
    """A request cannot be answered as it is.

    Attributes:
        status: of HTTP.
        parameter: which is wrong, or None.
        code: what clients tell errors apart by, or None.
    """

    def __init__(
        self, message: str, *, status: int = 400, parameter: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code


class JSON(Response):
    """An answer in JSON: all of it ASCII, so that whatever a request had in it can be quoted."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def error(message: str, *, status: int, parameter: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error as clients of OpenAI's API expect it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


def refusal(message: str, *, status: int, headers: dict[str, str] | None = None, code: str | None = None) -> JSON:
    """Return the answer to a request that is refused."""
    return JSON(error(message, status=status, code=code), status_code=status, headers=headers)
