"""The connections of a server: limited in number, and closed if a request takes too long to arrive."""

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from training.serving.fields import RequestError


def connections(*, most: int, patience: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol for at most `most` connections, whose requests arrive within `patience` seconds."""
    return cast(type[asyncio.Protocol], type("Connection", (_Connection,), {"MOST": most, "PATIENCE": patience}))


class _Connection(H11Protocol):
    """One connection; uvicorn's own class waits forever for the rest of a request."""

    MOST: int
    PATIENCE: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin, or end at once if there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.MOST:
            self._end(503, f"there are {self.MOST} connections already: try again later")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the timer while the client owes part of a request; receiving some of it does not restart the timer."""
        owes = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not owes or self.transport.is_closing():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.PATIENCE, self._too_late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        self._end(408, f"the request did not arrive within {self.PATIENCE:g} seconds")

    def _end(self, status: int, message: str) -> None:
        """Send the reason, unless a response has begun, and close."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps(RequestError(message, status=status).to_json()).encode()
            head = f"HTTP/1.1 {status} {'Request Timeout' if status == 408 else 'Service Unavailable'}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()
