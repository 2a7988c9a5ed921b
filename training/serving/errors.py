"""Errors of requests, in the format of OpenAI's API."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


class RequestError(ValueError):
    """A request cannot be answered.

    Attributes:
        status: of HTTP.
        parameter: the name of the invalid parameter, or None.
        code: the kind of error, for clients, or None.
    """

    def __init__(
        self, message: str, *, status: int = 400, parameter: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code

    def to_json(self) -> dict[str, Any]:
        """Return the error as OpenAI's API has it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}}


class JSON(Response):
    """A response in JSON, escaped to ASCII, so that it can quote any text of a request."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def refusal(wrong: RequestError, headers: Mapping[str, str] | None = None) -> JSON:
    """Return the response to a request that is refused."""
    return JSON(wrong.to_json(), status_code=wrong.status, headers=headers)
