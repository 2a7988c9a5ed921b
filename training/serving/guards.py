"""What is refused before anybody looks at it: what another page's script or a stranger sends.

A page on the web that a user looks at may send requests to this machine, too. A browser names the page's own host in
them where the page has made its name point here, and asks first (CORS) before it sends JSON: hence these checks.
"""

import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from training.serving.errors import refusal

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN = frozenset({"/health"})
"""What needs no key, so that whoever starts the server can see whether it is well."""


class HostGuard:
    """Refuses requests to another host than this one."""

    def __init__(self, app: ASGIApp, *, address: str, names: tuple[str, ...] = ()) -> None:
        """Guard an application at an address (at every IP address where it means all), and under further names."""
        self._app = app
        self._any = _is(address, "is_unspecified")
        here = LOOPBACK if self._any or address in LOOPBACK or _is(address, "is_loopback") else frozenset()
        self._names = {name.lower() for name in (*here, address, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            host = _name_of(Headers(scope=scope).get("host", ""))
            if host not in self._names and not (self._any and _is(host, "is_global", "is_private", "is_loopback")):
                message = f"Host: {host!r} is not a name of this server: give --allow-host to serve it under that name"
                await refusal(message, status=403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _name_of(host: str) -> str:
    """Return a Host header without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is(address: str, *kinds: str) -> bool:
    """Return whether this is the number of an address, of one of these kinds."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(getattr(number, kind) for kind in kinds)


class RequestGuard:
    """Refuses requests without the key, and those that send something else than JSON."""

    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        """Guard an application; clients must know the key, if there is one."""
        self._app = app
        self._key = None if api_key is None else _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._key is not None and scope["path"] not in OPEN and not self._knows(headers.get("authorization", "")):
            how = {"WWW-Authenticate": "Bearer"}
            message = "the API key is missing or wrong: send it as Authorization: Bearer KEY"
            await refusal(message, status=401, headers=how, code="invalid_api_key")(scope, receive, send)
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            message = f"Content-Type: expected application/json, got {kind or 'none'!r}"
            await refusal(message, status=415)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, authorization: str) -> bool:
        """Return whether the header has the key, in a time that tells nothing of it."""
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip().encode("latin-1"))
        return hmac.compare_digest(given, self._key or b"") and scheme.lower() == "bearer"


def _digest(key: bytes) -> bytes:
    """Return a hash of a key: keys of any length are compared in the same time."""
    return hashlib.sha256(key).digest()
