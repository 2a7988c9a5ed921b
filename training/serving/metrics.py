"""A server's metrics, for Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from training.serving.engine import Engine

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """The metrics of one server."""

    def __init__(self, engine: Engine | None) -> None:
        self._registry = CollectorRegistry()
        of = {"registry": self._registry, "namespace": "formal_algorithms"}
        self._requests = Counter("requests", "Requests, by path and status.", ["path", "status"], **of)
        self._seconds = Histogram("request_seconds", "Seconds to answer a request.", ["path"], buckets=SECONDS, **of)
        self._read = Counter("prompt_tokens", "Prompt tokens.", **of)
        self._generated = Counter("generated_tokens", "Tokens generated and sent.", **of)
        if engine is not None:
            Gauge("running", "Continuations in progress.", **of).set_function(lambda: engine.running)
            if (prefixes := engine.prefixes) is not None:
                Gauge("prefix_tokens", "Prompt tokens reused.", **of).set_function(lambda: prefixes.found)
                Gauge("prefix_bytes", "Bytes of keys and values kept.", **of).set_function(lambda: prefixes.nbytes)
            Gauge("waiting", "Continuations in the queue.", **of).set_function(lambda: engine.waiting)

    def used(self, *, read: int, generated: int) -> None:
        """Count tokens."""
        self._read.inc(read)
        self._generated.inc(generated)

    async def shown(self, _: Request) -> Response:
        """Answer with all metrics."""
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    def counting(self, app: ASGIApp, paths: Collection[str]) -> ASGIApp:
        """Wrap an application so that its requests are counted by path; paths not listed count as "other"."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            path = scope["path"] if scope["path"] in paths else "other"
            status = 499  # if the client leaves before it is answered

            async def noting(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                with self._seconds.labels(path).time():
                    await app(scope, receive, noting)
            finally:
                self._requests.labels(path, status).inc()

        return counted
