"""The HTTP application: which address does what, how long it may take, and what goes wrong."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from training.generation.text import Continuer
from training.serving.engine import Engine, Failed, FullError, Job, Step
from training.serving.protocol import (
    MOST_LOGPROBS,
    Completion,
    Limits,
    RequestError,
    check_model,
    choice,
    completion_of,
    envelope,
    error,
    usage,
)

__all__ = ["make_app"]

RETRY_AFTER = {"Retry-After": "1"}
NO_TEMPLATE = (
    "the model is a decoder of plain text that was not trained on conversations, so it has no template for chat: use "
    "/v1/completions"
)


class _Server:
    """Answers requests with one model."""

    def __init__(
        self, name: str, answerer: Continuer, engine: Engine, limits: Limits, timeout: float, clock: Callable
    ) -> None:
        self._name, self._answerer, self._engine, self._limits = name, answerer, engine, limits
        self._timeout, self._clock = timeout, clock
        self._created = int(clock())

    async def models(self, request: Request) -> Response:
        """Name the model."""
        model = {"id": self._name, "object": "model", "created": self._created, "owned_by": "formal-algorithms"}
        if "model" in request.path_params:
            check_model(request.path_params["model"], self._name)
            return JSONResponse(model)
        return JSONResponse({"object": "list", "data": [model]})

    async def chat(self, request: Request) -> Response:
        """Refuse to chat."""
        raise RequestError(NO_TEMPLATE)

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        body = await self._body(request)
        options = {"model": self._name, "tokenizer": self._answerer.tokenizer, "N_V": self._answerer.config.N_V}
        asked = completion_of(body, read=self._answerer.prompt, limits=self._limits, **options)
        steps: asyncio.Queue[tuple[int, Step | Failed]] = asyncio.Queue()
        jobs = self._jobs(asked, steps)
        identity, created = f"cmpl-{secrets.token_hex(12)}", int(self._clock())
        self._engine.submit(jobs)
        if asked.stream:
            return _Stream(jobs, self._parts(asked, len(jobs), steps, identity, created))
        try:
            async with asyncio.timeout(self._timeout):
                found = await _unless_gone(_all(steps, len(jobs)), request)
        except TimeoutError:
            raise RequestError(self._too_long(), status=504) from None
        finally:
            _abandon(jobs)
        if found is None:
            return Response(status_code=499)  # nobody reads it
        choices = [choice(i, found[i], self._answerer.tokenizer, asked.logprobs) for i in range(len(jobs))]
        used = usage(asked.prompts, sum(map(len, found)))
        return JSONResponse(envelope(identity, created, self._name, choices, usage=used))

    async def _body(self, request: Request) -> Any:
        """Return the JSON of a request, as far as it is not too large."""
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > self._limits.body:
                raise RequestError(f"the request has more than {self._limits.body} bytes", status=413)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise RequestError("the request is no JSON") from None

    def _jobs(self, asked: Completion, steps: asyncio.Queue) -> list[Job]:
        loop = asyncio.get_running_loop()
        seed = secrets.randbits(32) if asked.seed is None else asked.seed

        def emitter(index: int) -> Callable[[Step | Failed], None]:
            def emit(step: Step | Failed) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                    loop.call_soon_threadsafe(steps.put_nowait, (index, step))

            return emit

        return [
            Job(
                prompt=asked.prompts[index // asked.n],
                l_gen=asked.l_gen,
                sampling=asked.sampling,
                seed=seed,
                number=index,
                stop=asked.stop,
                likeliest=MOST_LOGPROBS if asked.logprobs else 0,
                emit=emitter(index),
            )
            for index in range(len(asked.prompts) * asked.n)
        ]

    async def _parts(
        self, asked: Completion, missing: int, steps: asyncio.Queue, identity: str, created: int
    ) -> AsyncIterator[str]:
        """Yield the events of a stream."""
        generated, offsets = 0, [0] * missing
        try:
            async with asyncio.timeout(self._timeout):
                while missing:
                    index, step = await steps.get()
                    if isinstance(step, Failed):
                        raise RequestError(step.message, status=500)
                    generated += 1
                    missing -= step.finish is not None
                    of_step = choice(index, [step], self._answerer.tokenizer, asked.logprobs, offset=offsets[index])
                    offsets[index] += len(step.text)
                    yield _event(envelope(identity, created, self._name, [of_step]))
            if asked.include_usage:
                yield _event(envelope(identity, created, self._name, [], usage=usage(asked.prompts, generated)))
            yield "data: [DONE]\n\n"
        except TimeoutError:
            yield _event(error(self._too_long(), status=504))
        except RequestError as failed:
            yield _event(error(str(failed), status=failed.status))

    def _too_long(self) -> str:
        return f"the completion took longer than {self._timeout:g} seconds: ask for fewer tokens, or later"


class _Stream(StreamingResponse):
    """Events of jobs, which end with it, also where the client has left before the first one."""

    def __init__(self, jobs: list[Job], events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._jobs = jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            _abandon(self._jobs)


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _abandon(jobs: list[Job]) -> None:
    for job in jobs:
        job.abandoned.set()


async def _all(steps: asyncio.Queue, n: int) -> list[list[Step]]:
    """Wait for all steps of n jobs."""
    found: list[list[Step]] = [[] for _ in range(n)]
    while not all(of_job and of_job[-1].finish for of_job in found):
        index, step = await steps.get()
        if isinstance(step, Failed):
            raise RequestError(step.message, status=500)
        found[index].append(step)
    return found


async def _unless_gone(steps: Any, request: Request) -> Any:
    """Return what is waited for, or None where the client hangs up before that."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    waiting, left = asyncio.ensure_future(steps), asyncio.ensure_future(gone())
    try:
        await asyncio.wait([waiting, left], return_when=asyncio.FIRST_COMPLETED)
        return await waiting if waiting.done() else None
    finally:
        waiting.cancel()
        left.cancel()


async def _refused(_: Request, wrong: Exception) -> Response:
    if isinstance(wrong, FullError):
        return JSONResponse(error(str(wrong), status=429), status_code=429, headers=RETRY_AFTER)
    assert isinstance(wrong, RequestError)
    return JSONResponse(error(str(wrong), status=wrong.status, parameter=wrong.parameter), status_code=wrong.status)


async def _failed(_: Request, wrong: Exception) -> Response:
    return JSONResponse(error(f"{type(wrong).__name__}: {wrong}", status=500), status_code=500)


async def _not_there(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, HTTPException)
    message = f"{request.method} {request.url.path}: {wrong.detail}; there are /v1/models and /v1/completions"
    return JSONResponse(error(message, status=wrong.status_code), status_code=wrong.status_code)


def make_app(
    name: str, answerer: Continuer, engine: Engine, *, limits: Limits, timeout: float, clock: Callable[[], float]
) -> Starlette:
    """Return the application.

    Args:
        name: of the model.
        answerer: reads prompts.
        engine: continues them; it starts and closes with the application.
        limits: the most that is taken.
        timeout: seconds that an answer may take, waiting included.
        clock: seconds since 1970.
    """
    server = _Server(name, answerer, engine, limits, timeout, clock)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(engine.close)

    routes = [
        Route("/v1/models", server.models),
        Route("/v1/models/{model:path}", server.models),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
    ]
    handlers: Any = {RequestError: _refused, FullError: _refused, HTTPException: _not_there, Exception: _failed}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
