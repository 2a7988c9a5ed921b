"""One request for generated text, from its jobs to its answer, at once or piece by piece."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from training.serving.chat import Chat
from training.serving.completions import Completion
from training.serving.engine import Failed, Job, Step
from training.serving.errors import RequestError, error
from training.serving.generating import usage
from training.serving.served import Served

T = TypeVar("T")


class Exchange:
    """A request and its answer.

    Attributes:
        jobs: what the engine is to generate.
    """

    def __init__(
        self, wanted: Completion | Chat, served: Served, identity: str, created: int, used: Callable[..., None]
    ) -> None:
        """Begin an answer; `created` is in seconds since 1970, and `used` takes how many tokens were read and
        generated.
        """
        self._wanted, self._served, self._used = wanted, served, used
        self._identity, self._created = identity, created
        self._steps: asyncio.Queue[tuple[int, Step | Failed]] = asyncio.Queue()
        self.jobs = self._jobs()

    def _jobs(self) -> list[Job]:
        asked, loop = self._wanted.asked, asyncio.get_running_loop()
        seed = secrets.randbits(32) if asked.seed is None else asked.seed

        def emitter(index: int) -> Callable[[Step | Failed], None]:
            def emit(step: Step | Failed) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                    loop.call_soon_threadsafe(self._steps.put_nowait, (index, step))

            return emit

        return [
            Job(
                prompt=asked.prompts[index // asked.n],
                l_gen=asked.l_gen,
                sampling=asked.sampling,
                seed=seed,
                number=index,
                stop=asked.stop,
                ends=frozenset(self._served.ends),
                emit=emitter(index),
            )
            for index in range(len(asked.prompts) * asked.n if asked.l_gen else 0)
        ]

    def abandon(self) -> None:
        """Let the engine generate no more."""
        for job in self.jobs:
            job.abandoned.set()

    async def whole(self) -> dict[str, Any]:
        """Return the answer when it is complete, or raise RequestError if there is none."""
        asked = self._wanted.asked
        found: list[list[Step]] = [[] for _ in range(len(asked.prompts) * asked.n)]
        async for index, step in self._each():
            found[index].append(step)
        choices = [self._wanted.whole(i, steps) for i, steps in enumerate(found)]
        return self._envelope(self._wanted.objects[0], choices, usage=self._counted(sum(map(len, found))))

    async def parts(self) -> AsyncIterator[str]:
        """Yield the events of the answer as it comes; the last one says what went wrong, if anything did."""
        generated, before, object_name = 0, [0] * len(self.jobs), self._wanted.objects[1]
        try:
            for choice in self._wanted.opening():
                yield _event(self._envelope(object_name, [choice]))
            async for index, step in self._each():
                generated += 1
                yield _event(self._envelope(object_name, [self._wanted.part(index, step, before[index])]))
                before[index] += len(step.text)
            used = self._counted(generated)
            if self._wanted.asked.include_usage:
                yield _event(self._envelope(object_name, [], usage=used))
            yield "data: [DONE]\n\n"
        except RequestError as failed:
            yield _event(error(str(failed), status=failed.status))

    async def _each(self) -> AsyncIterator[tuple[int, Step]]:
        """Yield the steps of all jobs, until all have ended."""
        loop, limits, missing = asyncio.get_running_loop(), self._served.limits, len(self.jobs)
        deadline = loop.time() + limits.seconds
        while missing:
            try:
                index, step = await asyncio.wait_for(self._steps.get(), deadline - loop.time())
            except TimeoutError:
                raise RequestError(limits.too_long, status=504) from None
            if isinstance(step, Failed):
                raise RequestError(step.message, status=500)
            missing -= step.finish is not None
            yield index, step

    def _counted(self, generated: int) -> dict[str, int]:
        used = usage(self._wanted.asked.prompts, generated)
        self._used(read=used["prompt_tokens"], generated=generated)
        return used

    def _envelope(self, object_name: str, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        same = {"id": self._identity, "object": object_name, "created": self._created, "model": self._served.name}
        return {**same, "choices": choices, **more}


class Stream(StreamingResponse):
    """The events of an exchange, which ends with it, also where the client has left before the first one."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.parts(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exchange.abandon()


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def unless_gone(answer: Awaitable[T], request: Request) -> T | None:
    """Return what is waited for, or None where the client hangs up before that."""

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
