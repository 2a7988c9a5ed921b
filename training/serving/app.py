"""The HTTP application: its routes, time limits, errors and metrics."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from training.serving import embeddings
from training.serving.chat import Chat, chat_of
from training.serving.completions import Completion, completion_of
from training.serving.engine import Engine, FullError
from training.serving.errors import JSON, RequestError, check_model, refusal
from training.serving.exchange import Exchange, Stream
from training.serving.guards import bounded, host_guard, request_guard
from training.serving.memory import TooLargeError
from training.serving.messages import tokenized
from training.serving.openapi import REQUESTS, description
from training.serving.requests import EmbeddingRequest
from training.serving.served import Decoder, ServedModel

T = TypeVar("T")
RETRY_AFTER = {"Retry-After": "1"}
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
PATHS = ("/v1/models", *REQUESTS, "/health", "/metrics", "/openapi.json")


class Metrics:
    """The metrics of one server, for Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats."""

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


class _Server:
    """Answers requests with one model."""

    def __init__(self, served: ServedModel, engine: Engine | None, clock: Callable[[], float]) -> None:
        self._served, self._engine, self._clock = served, engine, clock
        self._created = int(clock())
        self.metrics = Metrics(engine)
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")
        self._pending: list[Future[Any]] = []

    async def health(self, _: Request) -> Response:
        """Tell whether requests are answered."""
        well = self._engine is None or self._engine.is_well
        return JSON({"status": "ok" if well else "stopping"}, status_code=200 if well else 503)

    async def openapi(self, _: Request) -> Response:
        """Describe the paths and the fields of requests."""
        return JSON(description())

    async def models(self, request: Request) -> Response:
        """List the model, or describe it."""
        name = self._served.name
        model = {"id": name, "object": "model", "created": self._created, "owned_by": "formal-algorithms"}
        if "model" in request.path_params:
            check_model(request.path_params["model"], name)
            return JSON(model)
        return JSON({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        return JSON(await asyncio.to_thread(tokenized, await self._body(request), self._served))

    async def embeddings(self, request: Request) -> Response:
        wanted = EmbeddingRequest.read(await self._body(request), self._served)
        texts = await asyncio.to_thread(embeddings.texts_of, wanted, self._served)
        work = self._alone(lambda: embeddings.embeddings(wanted, texts, self._served))
        answer = await _unless_disconnected(work, request)
        self.metrics.used(read=sum(map(len, texts)), generated=0)
        return _of(answer)

    async def completions(self, request: Request) -> Response:
        return await self._generated(request, completion_of)

    async def chat(self, request: Request) -> Response:
        return await self._generated(request, chat_of)

    async def _generated(self, request: Request, parsed: Callable[[Any, ServedModel], Completion | Chat]) -> Response:
        """Answer a request for generated text, given the function that parses its JSON."""
        model, engine = self._served.model, self._engine
        wanted = await asyncio.to_thread(parsed, await self._body(request), self._served)
        assert isinstance(model, Decoder)
        assert engine is not None
        if isinstance(wanted, Completion) and wanted.echo and wanted.logprobs is not None:
            scores = await _unless_disconnected(self._alone(lambda: wanted.scored(model)), request)
            if scores is None:
                return _of(None)
            wanted.scores = scores
        exchange = Exchange(wanted, self._served, int(self._clock()), self.metrics.used)
        engine.submit(exchange.jobs)
        if wanted.plan.stream:
            return Stream(exchange)
        try:
            return _of(await _unless_disconnected(exchange.whole(), request))
        finally:
            exchange.abandon()

    async def _alone(self, work: Callable[[], T]) -> T:
        """Run a computation in the thread beside the engine's, one at a time. Raises FullError if too many wait."""
        self._pending = [pending for pending in self._pending if not pending.done()]
        if len(self._pending) >= self._served.limits.queue:
            raise FullError(f"{len(self._pending)} requests are waiting already; try again later")
        lock = self._engine.lock if self._engine is not None else None

        def in_turn() -> T:
            with lock or contextlib.nullcontext():
                return work()

        self._pending.append(self._aside.submit(in_turn))
        return await asyncio.wrap_future(self._pending[-1])

    async def _body(self, request: Request) -> Any:
        """Return the JSON of a request. Raises RequestError if it is too large, too slow or invalid."""
        data, most, patience = b"", self._served.limits.body, self._served.limits.patience
        try:
            async with asyncio.timeout(patience):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > most:
                        raise RequestError(f"the request has more than {most} bytes", status=413)
        except TimeoutError:
            raise RequestError(f"the request did not arrive within {patience:g} seconds", status=408) from None
        except ClientDisconnect:
            raise RequestError("the client has left", status=499) from None
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise RequestError("the request is not valid JSON") from None

    def close(self) -> None:
        """Stop the engine and the thread beside it."""
        self._aside.shutdown(wait=False, cancel_futures=True)
        if self._engine is not None:
            self._engine.close()


def _of(answer: Any) -> Response:
    """Return the response with an answer, or an empty one if the client has left."""
    return Response(status_code=499) if answer is None else JSON(answer)


async def _unless_disconnected(answer: Awaitable[T], request: Request) -> T | None:
    """Return the awaited answer, or None if the client disconnects first."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    waiting, left = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait([waiting, left], return_when=asyncio.FIRST_COMPLETED)
        return await waiting if waiting.done() else None
    finally:
        waiting.cancel()
        left.cancel()


async def _refused(request: Request, wrong: Exception) -> Response:
    """Return the response to a request that could not be answered."""
    if isinstance(wrong, RequestError):
        return refusal(wrong, {"Connection": "close"} if wrong.status == 408 else None)
    if isinstance(wrong, FullError):
        return refusal(RequestError(str(wrong), status=429), RETRY_AFTER)
    if isinstance(wrong, TooLargeError):
        return refusal(RequestError(str(wrong), code="context_length_exceeded"))
    if isinstance(wrong, HTTPException):
        known = f"{', '.join(PATHS[:-1])} and {PATHS[-1]}"
        message = f"{request.method} {request.url.path}: {wrong.detail}; the paths are {known}"
        return refusal(RequestError(message, status=wrong.status_code))
    return refusal(RequestError(f"{type(wrong).__name__}: {wrong}", status=500))


def make_app(
    served: ServedModel,
    engine: Engine | None,
    *,
    clock: Callable[[], float],
    address: str = "127.0.0.1",
    names: tuple[str, ...] = (),
    api_key: str | None = None,
    origins: tuple[str, ...] = (),
) -> ASGIApp:
    """Return the application, with which the engine (None: no decoder) starts and closes. Requests must be addressed to
    `address` or another of `names`, and carry `api_key` unless it is None; `origins` are those of web pages that may
    send some.
    """
    server = _Server(served, engine, clock)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if engine is not None:
            engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.close)

    routes = [
        Route("/health", server.health),
        Route("/metrics", server.metrics.shown),
        Route("/openapi.json", server.openapi),
        Route("/v1/models", server.models),
        Route("/v1/models/{model:path}", server.models),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/embeddings", server.embeddings, methods=["POST"]),
        Route("/tokenize", server.tokenize, methods=["POST"]),
    ]
    handlers: Any = dict.fromkeys((RequestError, FullError, TooLargeError, HTTPException, Exception), _refused)
    app: ASGIApp = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app = bounded(app, most=served.limits.requests, seconds=served.limits.seconds)
    app = request_guard(app, api_key=api_key)
    app = CORSMiddleware(app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    return server.metrics.counting(host_guard(app, address=address, names=names), paths=PATHS)
