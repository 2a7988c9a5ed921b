"""Guards: of connections, which are bounded in number, and of requests, which have to arrive in time, to be answered in
time, and to come neither from other pages' scripts nor from strangers.

A web page can send requests to this machine: if it made its own host name resolve to it (DNS rebinding), the browser
sends that name as the Host; and it asks for permission (CORS) before it sends JSON to another origin.
"""

import asyncio
import functools
import hashlib
import hmac
import http
import ipaddress
import json
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from training.serving.errors import RequestError, event, refusal

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
LINGERING = 1.0  # seconds for the error of an answer that took too long
OPEN = frozenset({"/health"})  # needs no key, so that whoever starts the server can check on it


def _guarded(app: ASGIApp, refused: Callable[[Scope], ASGIApp | None]) -> ASGIApp:
    """Return an application before another, which answers the requests for which `refused` returns a response."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        response = refused(scope) if scope["type"] == "http" else None
        await (response or app)(scope, receive, send)

    return guarded


def host_guard(app: ASGIApp, *, address: str, names: tuple[str, ...] = ()) -> ASGIApp:
    """Refuse requests addressed to another host than `address` (0.0.0.0 and :: mean every IP address) and `names`."""
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


def deadline_guard(app: ASGIApp, *, seconds: float) -> ASGIApp:
    """End each response of an application after so many seconds, with an error, also where the client does not read."""
    late = f"the answer took longer than {seconds:g} seconds: ask for fewer tokens, or try again later"

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        started: list[Message] = []

        async def noting(message: Message) -> None:
            started.append(message)
            await send(message)

        try:
            async with asyncio.timeout(seconds if scope["type"] == "http" else None):
                await app(scope, receive, noting)
        except TimeoutError:
            error = RequestError(late, status=504)
            async with asyncio.timeout(LINGERING):
                if not started:
                    await refusal(error)(scope, receive, send)
                else:  # a stream
                    await send({"type": "http.response.body", "body": event(error.to_json()).encode()})

    return guarded


def connections(*, limit: int, timeout: float) -> Any:
    """Return uvicorn's protocol for at most `limit` connections, whose requests arrive within `timeout` seconds."""
    return functools.partial(_Connection, limit, timeout)


class _Connection(H11Protocol):
    """One connection. uvicorn's own waits forever for a request and for its reader."""

    def __init__(self, limit: int, timeout: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limit, self._timeout = limit, timeout
        self._application, self.app = self.app, self._answered
        self._before: Any = None  # the request before the one that is expected, or the last that was

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limit:
            self._end(503, f"there are {self._limit} connections already: try again later")
        self.loop.call_later(self._timeout, self._check, None)

    def data_received(self, data: bytes) -> None:
        if self.cycle is not None and self.cycle.response_complete and self.cycle is not self._before:
            self._before = self.cycle
            self.loop.call_later(self._timeout, self._check, self._before)
        if not self.transport.is_closing():
            super().data_received(data)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._application(scope, receive, send)
        except TimeoutError:
            self.transport.abort()  # the client does not read: closing would wait for it

    def _check(self, before: Any) -> None:
        """End unless the request after the one `before` has arrived, with its body."""
        if before is self._before and (self.cycle is before or self.cycle.more_body):
            self._end(408, f"the request did not arrive within {self._timeout:g} seconds")

    def _end(self, status: int, message: str) -> None:
        """Send the reason, unless a response has begun, and close."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps(RequestError(message, status=status).to_json()).encode()
            head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
