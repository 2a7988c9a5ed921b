"""Guards that refuse connections, if there are too many or a request takes too long to arrive, and requests from other
pages' scripts and from strangers before they are read.

A web page can send requests to this machine: if it made its own host name resolve to it (DNS rebinding), the browser
sends that name as the Host; and it asks for permission (CORS) before it sends JSON to another origin.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Callable
from typing import Any, cast

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from training.serving.errors import RequestError, refusal

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN = frozenset({"/health"})  # needs no key, so that whoever starts the server can check on it


def _guarded(app: ASGIApp, refused: Callable[[Scope], ASGIApp | None]) -> ASGIApp:
    """Return an application before another, which answers the requests for which `refused` returns a response."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        response = refused(scope) if scope["type"] == "http" else None
        await (response or app)(scope, receive, send)

    return guarded


def host_guard(app: ASGIApp, *, address: str, names: tuple[str, ...] = ()) -> ASGIApp:
    """Refuse requests to an application that are addressed to another host than its address (0.0.0.0 and :: mean every
    IP address) and other names.
    """
    is_any = _is(address, "is_unspecified")
    here = LOOPBACK if is_any or address in LOOPBACK or _is(address, "is_loopback") else frozenset()
    known = {name.lower() for name in (*here, address, *names)}

    def refused(scope: Scope) -> ASGIApp | None:
        host = Headers(scope=scope).get("host", "").lower()  # and its port
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if host in known or (is_any and _is(host, "is_global", "is_private", "is_loopback")):
            return None
        message = f"Host: {host!r} is not a name of this server: give --allow-host to serve it under that name"
        return refusal(RequestError(message, status=403))

    return _guarded(app, refused)


def _is(address: str, *kinds: str) -> bool:
    """Return whether this is an IP address of one of these kinds."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(getattr(parsed, kind) for kind in kinds)


def request_guard(app: ASGIApp, *, api_key: str | None) -> ASGIApp:
    """Refuse requests to an application without the API key, if there is one, and bodies that are not JSON."""
    known = None if api_key is None else _digest(api_key.encode())

    def refused(scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if known is not None and scope["path"] not in OPEN:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            given = _digest(key.strip().encode("latin-1"))
            if not hmac.compare_digest(given, known) or scheme.lower() != "bearer":
                message = "the API key is missing or wrong: send it as Authorization: Bearer KEY"
                wrong = RequestError(message, status=401, code="invalid_api_key")
                return refusal(wrong, {"WWW-Authenticate": "Bearer"})
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            message = f"Content-Type: expected application/json, got {kind or 'none'!r}"
            return refusal(RequestError(message, status=415))
        return None

    return _guarded(app, refused)


def _digest(key: bytes) -> bytes:
    """Return a hash of a key, so that keys of any length are compared in the same time."""
    return hashlib.sha256(key).digest()


def connections(*, most: int, patience: float, idle: float = 75.0) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol for at most `most` connections, whose requests arrive within `patience` seconds.

    `idle`: seconds that one stays open between requests: longer than clients and proxies keep theirs (httpx 5, aiohttp
    15, nginx and load balancers 60), so that none sends a request on a connection that is just being closed.
    """
    limits = {"MOST": most, "PATIENCE": patience, "IDLE": idle}
    return cast(type[asyncio.Protocol], type("Connection", (_Connection,), limits))


class _Connection(H11Protocol):
    """One connection; uvicorn's own class waits forever for the rest of a request."""

    MOST: int
    PATIENCE: float
    IDLE: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin, in place of the connection that has been idle longest if there are too many; or end if none is."""
        super().connection_made(transport)
        self.timeout_keep_alive = self.IDLE
        others = [one for one in self.connections if isinstance(one, _Connection) and one is not self]
        others = [one for one in others if not one.transport.is_closing()]
        idle = {one: one.timeout_keep_alive_task.when() for one in others if one.timeout_keep_alive_task}
        if len(others) >= self.MOST and not idle:
            self._end(503, f"there are {self.MOST} connections already: try again later")
            return
        if len(others) >= self.MOST:
            min(idle, key=idle.__getitem__).transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the timer while the client owes part of a request, or its first; receiving some does not restart it."""
        is_between = self.conn.their_state is h11.IDLE and self.cycle is not None and not self.conn.trailing_data[0]
        owes = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not owes or is_between or self.transport.is_closing():
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
