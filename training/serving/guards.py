"""Guards: requests are bounded in number, are answered in time, and come neither from other pages' scripts nor from
strangers.

A web page can send requests to this machine: if it made its own host name resolve to it (DNS rebinding), the browser
sends that name as the Host; and it asks for permission (CORS) before it sends JSON to another origin.
"""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    known = None if api_key is None else hashlib.sha256(api_key.encode()).digest()

    def refused(scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if known is not None and scope["path"] not in OPEN:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            # of hashes, since the time to compare keys of two lengths would tell the length
            given = hashlib.sha256(key.strip().encode("latin-1")).digest()
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


def bounded(app: ASGIApp, *, most: int, seconds: float) -> ASGIApp:
    """Answer at most `most` requests at once and refuse the others. An answer that takes longer than `seconds` ends
    with an error, even if the client does not read it.
    """
    places = asyncio.Semaphore(most)
    late = f"the answer took longer than {seconds:g} seconds: ask for fewer tokens, or try again later"

    async def in_place(scope: Scope, receive: Receive, send: Send) -> None:
        started: list[Message] = []

        async def noting(message: Message) -> None:
            started.append(message)
            await send(message)

        try:
            async with asyncio.timeout(seconds):
                await app(scope, receive, noting)
        except TimeoutError:
            error = RequestError(late, status=504)
            async with asyncio.timeout(LINGERING):
                if not started:
                    await refusal(error)(scope, receive, send)
                else:  # a stream
                    await send({"type": "http.response.body", "body": event(error.to_json()).encode()})

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
        elif places.locked():
            error = RequestError(f"there are {most} requests already: try again later", status=503)
            await refusal(error)(scope, receive, send)
        else:
            async with places:
                await in_place(scope, receive, send)

    return guarded
