"""Continuous batching: a thread generates continuations side by side, each with its own sampling settings.

New jobs join the running batch before its next token if it has free rows. If joining needs programs that are not
compiled yet, the batch continues while a rehearsal in another thread compiles them.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from algorithms.machinery.sharding import devices_sharing
from training.data.tokenizers import Tokenizer
from training.generation import Continuation, Generator, Sampling
from training.generation.inputs import to_power_of_two
from training.generation.pieces import Pieces
from training.generation.prefixes import Prefixes
from training.generation.requests import Prompt, Request

GATHERING = 0.01  # seconds that the first request of a batch waits for others
LIKELIEST = 20  # the likeliest tokens that are always recorded; every other number would compile another program


class FullError(RuntimeError):
    """The queue is full."""


class Step(NamedTuple):
    """One more token of a continuation."""

    text: str  # the text that has become certain
    token: int
    log_p: float  # its log-probability under the model
    likeliest: list[tuple[int, float]]  # the likeliest tokens at its position, and their log-probabilities
    finish: str | None  # "stop" or "length" if it is the last


class Failed(NamedTuple):
    """A continuation that failed, or ended early."""

    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A requested continuation."""

    prompt: Prompt  # what to continue
    l_gen: int  # most tokens
    sampling: Sampling  # how to draw them
    seed: int
    number: int  # the key is ``fold_in(key(seed), number)``
    stop: tuple[str, ...]  # texts before which it ends
    ends: frozenset[int]  # tokens that end it
    emit: Callable[[Step | Failed], None]  # called with each step, in the engine's thread
    abandoned: threading.Event = dataclasses.field(default_factory=threading.Event)  # set when nobody waits for it


class _Running:
    """A job in the running batch: its text and number of tokens so far."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.job, self.text, self.n = job, Pieces(tokenizer, job.stop, given=job.prompt.given), 0

    def step(self, continuation: Continuation, r: int) -> Step:
        """Add the last token of row r, and return it as a step."""
        token, log_p = int(continuation.tokens[r, -1]), float(continuation.log_p[r, -1])
        likeliest = list(zip(*(array[r, -1].tolist() for array in continuation.likeliest), strict=True))
        self.n += 1
        if token in self.job.ends:
            return Step(self.text.rest(), token, log_p, likeliest, "stop")
        new = self.text.add(token)
        finish = "stop" if self.text.stopped else "length" if self.n == self.job.l_gen else None
        return Step(new + (self.text.rest() if finish == "length" else ""), token, log_p, likeliest, finish)


class Turns:
    """A lock that threads get in turn, for programs that several devices share: if two threads start two of them, one
    device may begin with the first and another with the second, and they wait for each other forever.
    """

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


class Engine:
    """Generates jobs side by side, in the order of arrival; `running` is how many are in progress."""

    def __init__(self, generator: Generator, tokenizer: Tokenizer, *, rows: int, queue: int) -> None:
        """Make an engine, not yet started, for at most `rows` continuations side by side and `queue` waiting ones."""
        self._generator, self._tokenizer, self._rows, self._queue = generator, tokenizer, rows, queue
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._closing, self.running = False, 0
        # what a thread holds while it computes with a model that several devices share; None on a single device
        self.turns = Turns() if devices_sharing(jax.tree.leaves(generator.theta)[0]) > 1 else None
        self._rehearsed: set[tuple[Any, ...]] = set()
        self._aside: tuple[threading.Thread, list[Job]] | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def waiting(self) -> int:
        """How many continuations wait."""
        return len(self._waiting)

    @property
    def prefixes(self) -> Prefixes | None:
        """The prefix cache, if there is one."""
        return self._generator.prefixes

    @property
    def is_well(self) -> bool:
        """Whether continuations will be generated."""
        return self._thread.is_alive() and not self._closing

    def start(self) -> None:
        """Begin to generate."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs, or raise FullError and queue none."""
        with self._changed:
            if self._closing or len(self._waiting) + len(jobs) > self._queue:
                asked = f"{len(self._waiting)} and {len(jobs)} more"
                raise FullError(f"expected at most {self._queue} waiting continuations, got {asked}; try again later")
            self._waiting += jobs
            self._changed.notify()

    def close(self) -> None:
        """Stop after the current step; unfinished jobs get `Failed`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            running = {r: _Running(job, self._tokenizer) for r, job in enumerate(batch)}
            try:
                self._generate(running)
                message = "the server is stopping"
            except Exception as error:  # whatever is wrong with this batch, the next one may succeed
                message = f"the continuation failed: {error}"
            self.running = 0
            for one in running.values():
                one.job.emit(Failed(message))
            if self._aside is not None:
                with self._changed:
                    self._waiting = self._aside[1] + self._waiting
                self._aside = None
        for job in self._waiting:
            job.emit(Failed("the server is stopping"))

    def _next(self) -> list[Job]:
        """Wait for jobs, and return those to generate side by side; an empty list when the engine closes."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                self._changed.wait_for(lambda: len(self._waiting) >= self._rows or self._closing, timeout=GATHERING)
                if self._closing:
                    return []
                if jobs := self._first(self._rows):
                    return jobs

    def _joining(self, continuation: Continuation, running: dict[int, _Running]) -> list[Job]:
        """Return waiting jobs that fit, once their programs are compiled; at once if several devices share a model."""
        if self._aside is not None:
            thread, jobs = self._aside
            if thread.is_alive():
                return []
            self._aside = None
            return [job for job in jobs if not job.abandoned.is_set()]
        with self._changed:
            jobs = self._first(self._rows - len(running))
        if not jobs:
            return []
        requests, keep = _to_join(continuation, running, jobs)
        shapes = continuation.shapes_to_join(requests, keep=keep)
        if self._is_known(shapes) or self.turns is not None:
            return jobs
        rehearsal = threading.Thread(target=_rehearse, args=(continuation.copy(), requests, keep), daemon=True)
        self._aside = (rehearsal, jobs)
        rehearsal.start()
        return []

    def _is_known(self, shapes: tuple[Any, ...]) -> bool:
        """Return whether programs for these shapes were compiled before, and note that they will be now."""
        known = shapes in self._rehearsed
        self._rehearsed.add(shapes)
        return known

    def _first(self, n: int) -> list[Job]:
        """Take the first n waiting jobs that are not abandoned."""
        waiting = [job for job in self._waiting if not job.abandoned.is_set()]
        jobs, self._waiting = waiting[:n], waiting[n:]
        return jobs

    def _generate(self, running: dict[int, _Running]) -> None:
        """Generate until all rows have ended, or the engine closes; remove jobs that end, and add those that join."""
        requests = _requests([one.job for one in running.values()])
        likeliest = min(LIKELIEST, self._generator.config.N_V)
        with self.turns or contextlib.nullcontext():
            continuation = self._generator.answer(requests, likeliest=likeliest)
        while running and not self._closing:
            self.running = len(running)
            with self.turns or contextlib.nullcontext():
                self._advance(continuation, running)

    def _advance(self, continuation: Continuation, running: dict[int, _Running]) -> None:
        """Generate one more token of each row, remove jobs that end, and add those that join."""
        continuation.extend(continuation.tokens.shape[1] + 1)
        for r, one in list(running.items()):
            step = one.step(continuation, r)
            if step.finish or one.job.abandoned.is_set():
                continuation.keep(r)
                del running[r]
            one.job.emit(step)
        joining = self._joining(continuation, running) if running else []
        if joining:
            requests, keep = _to_join(continuation, running, joining)
            ones = [*running.values(), *(_Running(job, self._tokenizer) for job in joining)]
            running.clear()
            running.update(enumerate(ones))  # in new rows
            continuation.join(requests, keep=keep)


def _requests(jobs: Sequence[Job]) -> list[Request]:
    """Return jobs as requests; the first one fills unused rows."""

    def request(job: Job) -> Request:
        key = jax.random.fold_in(jax.random.key(job.seed), job.number)
        return Request(job.prompt.tokens, key, job.l_gen, job.sampling, job.prompt.begins)

    return to_power_of_two([request(job) for job in jobs])


def _to_join(
    continuation: Continuation, running: dict[int, _Running], joining: Sequence[Job]
) -> tuple[list[Request], list[int]]:
    """Return the arguments of `Continuation.join` for jobs."""
    first = len(continuation.starts)
    return _requests(joining), to_power_of_two([*running, *range(first, first + len(joining))])


def _rehearse(continuation: Continuation, requests: list[Request], keep: list[int]) -> None:
    """Let prompts join a copy of the running batch, so that all programs that this needs are compiled."""
    with contextlib.suppress(Exception):  # an error is raised again when they really join
        continuation.join(requests, keep=keep)
        continuation.extend(continuation.tokens.shape[1] + 1)
