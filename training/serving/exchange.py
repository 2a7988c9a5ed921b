"""One request for generated text, from its jobs to its answer, whole or streamed."""

import asyncio
import contextlib
import functools
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from training.serving.chat import Chat
from training.serving.completions import Completion
from training.serving.engine import Failed, Job, Token
from training.serving.errors import RequestError, event
from training.serving.served import ServedModel


class Exchange:
    """A request and its answer; the engine generates its `jobs`."""

    def __init__(self, wanted: Completion | Chat, served: ServedModel, created: int, used: Callable[..., None]) -> None:
        """Begin an answer; `created` is in seconds since 1970, and `used` is called with the token counts."""
        self._wanted, self._served, self._used = wanted, served, used
        self._identity, self._created = f"{wanted.prefix}-{secrets.token_hex(12)}", created
        self._steps: asyncio.Queue[tuple[int, Token | Failed]] = asyncio.Queue()
        plan, loop = wanted.plan, asyncio.get_running_loop()

        def emit(index: int, step: Token | Failed) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(self._steps.put_nowait, (index, step))

        seed = secrets.randbits(32) if plan.seed is None else plan.seed
        self.jobs = [
            Job(
                prompt=plan.prompts[index // plan.n],
                l_gen=plan.l_gen,
                sampling=plan.sampling,
                seed=seed,
                number=index,
                stop=plan.ends.stops,
                ends=frozenset(plan.ends.tokens),
                emit=functools.partial(emit, index),
                named=plan.named,
                grammar=None if plan.grammar is None else plan.grammar.copy(),
            )
            for index in range(len(plan.prompts) * plan.n if plan.l_gen else 0)
        ]

    def abandon(self) -> None:
        """Tell the engine to stop generating."""
        for job in self.jobs:
            job.abandoned.set()

    async def whole(self) -> dict[str, Any]:
        """Return the complete answer. Raises RequestError if it failed."""
        plan = self._wanted.plan
        found: list[list[Token]] = [[] for _ in range(len(plan.prompts) * plan.n)]
        async for index, step in self._each():
            found[index].append(step)
        choices = [self._wanted.whole(i, steps) for i, steps in enumerate(found)]
        return self._envelope(self._wanted.objects[0], choices, usage=self._counted(sum(map(len, found))))

    async def parts(self) -> AsyncIterator[str]:
        """Yield the answer as events while it is generated; if it fails, the last event is the error."""
        generated, object_name = 0, self._wanted.objects[1]
        try:
            for choice in self._wanted.opening():
                yield event(self._envelope(object_name, [choice]))
            async for index, step in self._each():
                generated += 1
                yield event(self._envelope(object_name, [self._wanted.part(index, step)]))
            used = self._counted(generated)
            if self._wanted.plan.include_usage:
                yield event(self._envelope(object_name, [], usage=used))
            yield "data: [DONE]\n\n"
        except RequestError as failed:
            yield event(failed.to_json())

    async def _each(self) -> AsyncIterator[tuple[int, Token]]:
        """Yield the steps of all jobs, until all have ended."""
        missing = len(self.jobs)
        while missing:
            index, step = await self._steps.get()
            if isinstance(step, Failed):
                raise RequestError(step.message, status=500)
            missing -= step.finish is not None
            yield index, step

    def _counted(self, generated: int) -> dict[str, int]:
        """Return the token counts, and report them to the server."""
        read = sum(len(prompt.tokens) for prompt in self._wanted.plan.prompts)
        self._used(read=read, generated=generated)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}

    def _envelope(self, object_name: str, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        same = {"id": self._identity, "object": object_name, "created": self._created, "model": self._served.name}
        return {**same, "choices": choices, **more}


class Stream(StreamingResponse):
    """The events of an exchange; abandons its jobs at the end, even if the client leaves before the first event."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.parts(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exchange.abandon()
