"""Continuous batching: a thread generates continuations side by side, each with its own sampling settings.

Between two tokens it reads a part of a new job's prompt, so that a long one delays nobody; a prompt that has been read
joins the running batch before the next token. Jobs are admitted in the order of arrival, as long as there are free
rows, and memory for what they asked for.
"""

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from algorithms.machinery.devices import devices_sharing
from training.data.tokenizers import Tokenizer
from training.generation import Continuation, Generator, Sampling
from training.generation.grammars import Grammar
from training.generation.pieces import Pieces
from training.generation.prefixes import Prefixes
from training.generation.prompts import ROOM, ReadPrompts, in_parts
from training.generation.requests import Prompt, Request
from training.serving.memory import LIKELIEST, Budget, rows_for, slots_for
from training.system import give_back_memory

GATHERING = 0.01  # seconds that the first request of a batch waits for others
FEWER = 256  # tokens for which fewer rows have to be enough before a program is compiled for them


class FullError(RuntimeError):
    """The queue is full."""


class Token(NamedTuple):
    """One more token of a continuation."""

    text: str  # the text that has become certain
    token: int
    log_p: float | None  # its log-probability under the model; None: it is the first, which is not predicted
    likeliest: list[tuple[int, float]]  # the likeliest tokens at its position, and their log-probabilities
    finish: str | None  # "stop" or "length" if it is the last
    start: int = 0  # where its text begins, in characters of the continuation; of the prompt if it repeats some of that
    begins: bool = False  # whether a text begins there


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
    emit: Callable[[Token | Failed], None]  # called with each step, in the engine's thread
    named: Mapping[int, str] = dataclasses.field(default_factory=dict)  # special tokens that its text names
    grammar: Grammar | None = None  # what it follows, if not any text will do; for it alone
    abandoned: threading.Event = dataclasses.field(default_factory=threading.Event)  # set when nobody waits for it


class _Sequence:
    """A job on its way: its tokens and text so far."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.job, self.tokens, prompt = job, list[int](), job.prompt
        self.text = Pieces(tokenizer, job.stop, given=prompt.given, before=prompt.before, named=job.named)

    def request(self) -> Request:
        """Return what is still to be generated."""
        job = self.job
        key = jax.random.fold_in(jax.random.key(job.seed), job.number)
        drawn, begins = len(self.tokens), job.prompt.begins
        tokens = [*job.prompt.tokens, *self.tokens]
        permits = None if job.grammar is None else job.grammar.permits
        return Request(tokens, key, job.l_gen - drawn, job.sampling, begins, drawn, permits)

    def step(self, continuation: Continuation, r: int) -> Token | Failed:
        """Add the last token of row r, and return it as a step."""
        token, log_p = int(continuation.tokens[r, -1]), float(continuation.log_p[r, -1])
        likeliest = list(zip(*(array[r, -1].tolist() for array in continuation.likeliest), strict=True))
        self.tokens.append(token)
        (place, begins), finish, grammar = self.text.place, None, self.job.grammar
        if token in self.job.ends:
            text, finish = self.text.rest(), "stop"
        else:
            text, is_whole = self.text.add(token), grammar is not None and grammar.is_whole(self.tokens)
            if grammar is not None and grammar.problem:
                return Failed(f"the continuation failed: its form requires more, but {grammar.problem}")
            is_last = len(self.tokens) == self.job.l_gen
            finish = "stop" if self.text.stopped or is_whole else "length" if is_last else None
            text += self.text.rest() if finish and not self.text.stopped else ""
        return Token(text, token, log_p, likeliest, finish, place - self.job.prompt.given, begins)


def _is_last(step: Token | Failed) -> bool:
    return isinstance(step, Failed) or step.finish is not None


class _Group(NamedTuple):
    """Sequences with the same prompt, which is read once."""

    sequences: list[_Sequence]
    parts: Iterator[ReadPrompts | None]


class FairLock:
    """A lock that threads get in turn: two programs that several devices begin in another order would wait forever."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


class Engine:
    """Generates jobs side by side."""

    def __init__(
        self, generator: Generator, tokenizer: Tokenizer, *, rows: int, queue: int, budget: Budget | None = None
    ) -> None:
        """Make an engine of `rows` continuations at once and `queue` waiting; budget: else a share of free memory."""
        self._generator, self._tokenizer, self._rows, self._queue = generator, tokenizer, rows, queue
        self._budget = Budget(generator) if budget is None else budget
        self._changed, self._closing = threading.Condition(), False
        # where a job is: first it waits, then it is active, while its prompt is read, and while it runs
        self._waiting: list[_Sequence] = []
        self._active: list[_Sequence] = []
        self._groups: deque[_Group] = deque()
        self._running: dict[int, _Sequence] = {}  # by their rows
        self._continuation = self._empty()
        self._spared = 0  # for how many tokens fewer rows have been enough
        self._compiled: set[tuple[int, int]] = set()  # the rows and slots that batches have had
        self._untidy = False  # whether much memory was freed: a program was compiled, or a batch has ended
        # what a thread holds while it computes with a model that several devices share; None on a single device
        self.lock = FairLock() if devices_sharing(jax.tree.leaves(generator.theta)[0]) > 1 else None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def waiting(self) -> int:
        """Number of continuations that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of continuations that are being generated."""
        return len(self._active)

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
        """Queue all of these jobs, or raise FullError or TooLargeError and queue none."""
        for job in jobs:
            self._budget.check(len(job.prompt.tokens), job.l_gen)
        with self._changed:
            waiting = [one for one in self._waiting if not one.job.abandoned.is_set()]
            if self._closing or len(waiting) + len(jobs) > self._queue:
                asked = f"{len(waiting)} and {len(jobs)} more"
                raise FullError(f"expected at most {self._queue} waiting continuations, got {asked}; try again later")
            self._waiting = waiting + [_Sequence(job, self._tokenizer) for job in jobs]
            self._changed.notify_all()

    def close(self) -> None:
        """Stop after the current step; unfinished jobs get `Failed`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._fail([*self._active, *self._waiting], "the server is stopping")
        self._active, self._waiting = [], []

    def _empty(self) -> Continuation:
        return Continuation(self._generator, [], likeliest=min(LIKELIEST, self._generator.config.N_V))

    def _fail(self, sequences: Sequence[_Sequence], why: Exception | str) -> None:
        for one in sequences:
            one.job.emit(Failed(why if isinstance(why, str) else f"the continuation failed: {why}"))

    def _release(self, sequences: Sequence[_Sequence]) -> None:
        """Give the rows and the memory of sequences to others."""
        self._active = [one for one in self._active if one not in sequences]

    def _run(self) -> None:
        """Read prompts and generate, part by part and token by token."""
        while self._has_work():
            with self.lock or contextlib.nullcontext():
                entering, read = self._read_part()
                try:
                    self._advance(entering, read)
                except Exception as error:  # whatever is wrong with this batch, the next one may succeed
                    failed = [*self._running.values(), *entering]
                    self._running, self._continuation = {}, self._empty()
                    self._release(failed)
                    self._fail(failed, error)
            if self._untidy:
                self._untidy = False
                give_back_memory()

    def _has_work(self) -> bool:
        """Wait until there are jobs, and admit those that there is room for; return False when the engine closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._active or self._waiting)
            if not self._active:
                self._changed.wait_for(lambda: self._closing or len(self._waiting) >= self._rows, GATHERING)
            self._admit()
            return not self._closing

    def _admit(self) -> None:
        """Move waiting jobs to the active ones, in their order, as long as there are rows and memory."""
        self._waiting = [one for one in self._waiting if not one.job.abandoned.is_set()]
        same: dict[tuple[int, ...], list[_Sequence]] = {}
        while self._waiting and len(self._active) < self._rows and self._fits(one := self._waiting[0]):
            same.setdefault(tuple(one.job.prompt.tokens), []).append(one)
            self._active.append(self._waiting.pop(0))
        self._groups += map(self._group, same.values())

    def _fits(self, new: _Sequence) -> bool:
        """Whether a new sequence fits into memory beside the active ones."""
        every, running = [*self._active, new], list(self._running.values())
        batch = [len(one.job.prompt.tokens) + one.job.l_gen for one in every]
        read = {tuple(one.job.prompt.tokens) for one in every if one not in running}
        return self._budget.fits(batch, map(len, read))

    def _group(self, sequences: list[_Sequence]) -> _Group:
        text = np.array([*sequences[0].job.prompt.tokens, *sequences[0].tokens], np.int32)
        return _Group(sequences, in_parts(self._generator, text, len(sequences)))

    def _read_part(self) -> tuple[list[_Sequence], ReadPrompts | None]:
        """Read a part of the next group's prompt, unless nobody waits for it; return the group if that was the last."""
        if not self._groups:
            return [], None
        sequences, parts = group = self._groups.popleft()
        if all(one.job.abandoned.is_set() for one in sequences):
            self._release(sequences)
            return [], None
        try:
            read = next(parts)
        except Exception as error:  # whatever is wrong with these, others may succeed
            self._release(sequences)
            self._fail(sequences, error)
            return [], None
        if read is None:
            self._groups.append(group)
            return [], None
        return sequences, read

    def _advance(self, entering: Sequence[_Sequence], read: ReadPrompts | None) -> None:
        """Let sequences enter, generate one more token of each, and let go of those that end."""
        is_sparse = bool(self._running) and rows_for(len(self._active)) < len(self._continuation.left)
        self._spared = self._spared + 1 if is_sparse else 0
        if entering or (self._running and (self._continuation.is_full or self._spared >= FEWER)):
            self._move(entering, read)
        if not self._running:
            return
        continuation = self._continuation
        continuation.extend(continuation.tokens.shape[1] + 1)
        steps = [(r, one, one.step(continuation, r)) for r, one in self._running.items()]
        ended = [(r, one) for r, one, step in steps if _is_last(step) or one.job.abandoned.is_set()]
        for r, _ in ended:
            continuation.keep(r)
        outgrown = [(r, one) for r, one, _ in steps if not continuation.left[r] and (r, one) not in ended]
        for r, _ in ended + outgrown:
            continuation.drop(r)
            del self._running[r]
        if not self._running:
            self._continuation, self._untidy = self._empty(), True
        self._groups += [self._group([one]) for _, one in outgrown]
        self._release([one for _, one in ended])
        for _, one, step in steps:
            one.job.emit(step)

    def _move(self, sequences: Sequence[_Sequence], read: ReadPrompts | None) -> None:
        """Continue with the running sequences and new ones, in one of few sizes, so that few programs are compiled."""
        continuation, l_max = self._continuation, self._generator.config.l_max
        present = len(continuation.left)
        rows = [*self._running, *range(present, present + len(sequences))]
        keep = rows + rows[:1] * (rows_for(len(self._active)) - len(rows))
        needed = max(len(one.job.prompt.tokens) + min(one.job.l_gen, ROOM) + 1 for one in self._active)

        def slots(least: int) -> int:
            return slots_for(max(least, min(needed, l_max + 1)), l_max)

        continuation.join([one.request() for one in sequences], keep=keep, read=read, slots=slots)
        for r in range(len(rows), len(keep)):  # padding
            continuation.drop(r)
        self._running = dict(enumerate([*self._running.values(), *sequences]))
        size = (len(keep), continuation.slots)
        self._untidy |= size not in self._compiled
        self._compiled.add(size)
