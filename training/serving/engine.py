"""Continuations for many at once: what waits and is drawn alike is generated side by side, in a thread of its own."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from training.data.tokenizers import Tokenizer
from training.generation import Continuation, Generator, Sampling
from training.generation.pieces import Pieces
from training.generation.prompts import Prompt, side_by_side

__all__ = ["Engine", "Failed", "FullError", "Job", "Step"]

GATHERING = 0.01
"""Seconds that the first of several requests waits for the others."""


class FullError(RuntimeError):
    """Too many continuations wait."""


class Step(NamedTuple):
    """One more token of a continuation.

    Attributes:
        text: what is certain now and was not before.
        token: the token.
        log_p: its log-probability under the model.
        likeliest: the likeliest tokens in its place, and their log-probabilities.
        finish: "stop" or "length" where it is the last.
    """

    text: str
    token: int
    log_p: float
    likeliest: list[tuple[int, float]]
    finish: str | None


class Failed(NamedTuple):
    """There is no continuation, or no more of it."""

    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A continuation that is asked for.

    Attributes:
        prompt: what is continued.
        l_gen: most tokens.
        sampling: how they are drawn.
        seed, number: decide what is drawn: the key is ``fold_in(key(seed), number)``.
        stop: texts before which it ends.
        likeliest: how many of the likeliest tokens to note.
        emit: takes each step, in the engine's thread.
        abandoned: set when nobody waits for it any more.
    """

    prompt: Prompt
    l_gen: int
    sampling: Sampling
    seed: int
    number: int
    stop: tuple[str, ...]
    likeliest: int
    emit: Callable[[Step | Failed], None]
    abandoned: threading.Event = dataclasses.field(default_factory=threading.Event)

    @property
    def kind(self) -> tuple:
        """What jobs must share to be generated side by side."""
        return (*sorted(self.sampling.items()), self.likeliest)


class Engine:
    """Generates what waits, in the order in which it came, and alike with the first as many as there are rows."""

    def __init__(self, generator: Generator, tokenizer: Tokenizer, *, rows: int, queue: int) -> None:
        """Make an engine that has not started yet.

        Args:
            generator: the model.
            tokenizer: its tokenizer.
            rows: the most continuations side by side.
            queue: the most that wait.
        """
        self._generator, self._tokenizer, self._rows, self._queue = generator, tokenizer, rows, queue
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to generate."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Let jobs wait, all or none.

        Raises:
            FullError: too many wait.
        """
        with self._changed:
            if self._closing or len(self._waiting) + len(jobs) > self._queue:
                raise FullError(
                    f"{len(self._waiting)} continuations wait, and at most {self._queue} may: try again later"
                )
            self._waiting += jobs
            self._changed.notify()

    def close(self) -> None:
        """Stop after the step that is being made; who still waits is told."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._generate(batch)
            except Exception as error:  # whatever is wrong with this batch, the next one may be well
                for job in batch:
                    job.emit(Failed(f"the continuation failed: {error}"))
        for job in self._waiting:
            job.emit(Failed("the server is stopping"))

    def _next(self) -> list[Job]:
        """Wait for jobs, and return those to generate side by side; none where the engine closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(lambda: len(self._waiting) >= self._rows or self._closing, timeout=GATHERING)
            self._waiting = [job for job in self._waiting if not job.abandoned.is_set()]
            if self._closing:
                return []
            if not self._waiting:
                return self._next()
            kind = self._waiting[0].kind
            batch = [job for job in self._waiting if job.kind == kind][: self._rows]
            chosen = set(map(id, batch))
            self._waiting = [job for job in self._waiting if id(job) not in chosen]
        return batch

    def _generate(self, batch: list[Job]) -> None:
        begun, l_gen = self._begin(batch), max(job.l_gen for job in batch)
        texts = [Pieces(self._tokenizer, job.stop, given=job.prompt.given) for job in batch]
        running = dict(enumerate(batch))
        for i in range(l_gen):
            begun.extend(i + 1)
            for r, job in list(running.items()):
                step = self._step(begun, r, i, texts[r], job)
                if step.finish or job.abandoned.is_set():
                    del running[r]
                job.emit(step)
            if self._closing or not running:
                break
        for job in running.values():
            job.emit(Failed("the server is stopping"))

    def _begin(self, batch: list[Job]) -> Continuation:
        """Read the prompts; what is compiled serves 1, 2, 4, … rows, so the first stands in for those that lack."""
        rows = batch + [batch[0]] * ((1 << (len(batch) - 1).bit_length()) - len(batch))
        x, lengths, begins = side_by_side([job.prompt for job in rows], self._generator.config.N_V)
        return self._generator.begin(
            x,
            lengths=lengths,
            l_gen=max(job.l_gen for job in batch),
            key=jnp.stack([jax.random.fold_in(jax.random.key(job.seed), job.number) for job in rows]),
            sliding=True,
            begins=begins,
            likeliest=batch[0].likeliest,
            **batch[0].sampling,
        )

    def _step(self, begun: Continuation, r: int, i: int, text: Pieces, job: Job) -> Step:
        token, log_p = int(begun.tokens[r, i]), float(begun.log_p[r, i])
        likeliest = list(zip(begun.likeliest[0][r, i].tolist(), begun.likeliest[1][r, i].tolist(), strict=True))
        if token == job.sampling.get("eos"):
            return Step(text.rest(), token, log_p, likeliest, "stop")
        new = text.add(token)
        if text.stopped:
            return Step(new, token, log_p, likeliest, "stop")
        if i + 1 == job.l_gen:
            return Step(new + text.rest(), token, log_p, likeliest, "length")
        return Step(new, token, log_p, likeliest, None)
