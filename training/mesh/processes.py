"""Several processes that train together, each on its own devices, connected by JAX's runtime.

Each sends the coordinator, process 0, a heartbeat every few seconds. A process that finds another one silent or gone
exits; otherwise it would wait forever.
"""

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from training.mesh.coordinator import Store

HEARTBEAT = 2.0  # seconds between two heartbeats
SILENCE = 30.0  # seconds without a heartbeat after which a process counts as gone
AGREEMENT_TIMEOUT = 1800.0  # seconds to wait for the other processes, which may still tokenize their data
AUTOMATIC = "auto"
COURSE, TRAINING, STOPPING = "course/taken", "training", "stopping"  # a name in the store, and its texts


class ProcessesError(ValueError):
    """The processes do not fit together; the message is one sentence."""


class Processes:
    """The processes of a training: this one alone, until it joins others; its `index` among their `count`."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self._store: Store | None = None
        self._left, self._ending = threading.Event(), threading.Lock()
        self._points = 0  # calls of should_stop

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which alone writes the shared files."""
        return self.index == 0

    def join(
        self,
        coordinator: str,
        count: int | None,
        index: int | None,
        on_loss: Callable[[str], None],
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect to the other processes, before JAX is used, at HOST:PORT of process 0, or "auto" to ask SLURM,
        Kubernetes or a Cloud TPU, or raise ProcessesError. When one is gone, `on_loss`, and when one is stopped before
        the training begins, `on_stop`, called in a thread, must end this process.
        """
        address = None if coordinator == AUTOMATIC else coordinator
        if address is not None:
            _check(address, count, index)
        loopback = address is not None and address.rpartition(":")[0] in ("localhost", "127.0.0.1")
        try:
            jax.distributed.initialize(
                address, count, index, coordinator_bind_address=address if loopback and index == 0 else None
            )
        except ValueError as error:
            give = "give HOST:PORT, --num-processes and --process-id"
            raise ProcessesError(
                f"--coordinator: expected a cluster that JAX detects, got none ({error}); {give}"
            ) from None
        self.index, self.count = jax.process_index(), jax.process_count()
        self._store, self._on_loss, self._on_stop = Store(), on_loss, on_stop
        self._store.replace(f"beat/{self.index}", "0")
        threading.Thread(target=self._watch, args=(self._store,), daemon=True).start()

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise ProcessesError in all processes, which must call this, unless their facts (JSON by name) agree."""
        if self.count == 1:
            return
        texts = self._exchanged(what, json.dumps(facts, default=str), range(self.count))
        all_facts = [json.loads(text) for text in texts]
        for i, facts_of_i in enumerate(all_facts):
            for name, value in all_facts[0].items():
                if facts_of_i.get(name) != value:
                    raise ProcessesError(
                        f"process {i} has {name} {_short(facts_of_i.get(name))}, and process 0 {_short(value)}: "
                        "start all of them with the same command, code and data"
                    )

    def broadcast_from_main(self, what: str, value: str) -> str:
        """Return the value of process 0."""
        return value if self.count == 1 else self._exchanged(what, value, range(1))[0]

    def _exchanged(self, what: str, text: str, of: Iterable[int]) -> list[str]:
        """Return the texts of these processes; all processes call this."""
        assert self._store is not None
        self._store.put(f"{what}/{self.index}", text)
        return [self._store.wait_for(f"{what}/{i}", AGREEMENT_TIMEOUT) for i in of]

    def wait_for_all(self, what: str) -> None:
        """Wait until all processes call this."""
        if self.count > 1:
            multihost_utils.sync_global_devices(what)

    def all_begin(self) -> bool:
        """Return whether the training begins in all processes; otherwise, one of them was stopped before."""
        return self._all_take(TRAINING)

    def all_stop(self) -> bool:
        """Return whether all processes end at once, before any began to train, instead of by `should_stop`."""
        if self._left.is_set():
            return True
        if not self._all_take(STOPPING):
            return False
        self._ending.acquire()  # as in `leave`
        if self._store is not None:
            self._linger()
        return True

    @property
    def are_stopping(self) -> bool:
        """Whether all processes end at once: the first to end break what the others compute together."""
        with contextlib.suppress(Exception):  # of JAX's runtime: the coordinator is gone
            return self._store is not None and STOPPING in self._store.under("course/").values()
        return False

    def _all_take(self, course: str) -> bool:
        """Return whether all processes take a course: the first that one of them names; one that is alone takes any."""
        if self._store is None:
            return True
        with contextlib.suppress(Exception):  # of JAX's runtime: another process has named one
            self._store.put(COURSE, course)
        return self._store.wait_for(COURSE, SILENCE) == course

    def should_stop(self) -> bool:
        """Return whether a process received SIGTERM; all processes call this equally often, and return true at once."""
        self._points += 1
        return self.count > 1 and multihost_utils.reached_preemption_sync_point(self._points)

    def leave(self, reason: str = "") -> None:
        """Leave the other processes: with a reason, tell them and return; without one, wait until all are done."""
        if self._left.is_set() or self.count == 1:
            return
        self._ending.acquire()  # never released: if the watching thread has it, that thread ends the process
        self._left.set()
        if reason and self._store is not None:
            self._tell(self._store, reason)
        else:
            jax.distributed.shutdown()

    def _tell(self, store: Store, reason: str) -> None:
        """Tell the others why this process ends; the coordinator waits until they have read it."""
        with contextlib.suppress(Exception):  # the coordinator may be gone
            store.put(f"gone/{self.index}", reason)
            self._linger()

    def _linger(self) -> None:
        """Wait, in the coordinator, until the others have read what the store has."""
        threading.Event().wait(2 * HEARTBEAT if self.is_main else 0)

    def _watch(self, store: Store) -> None:
        heard = {i: ("", 0) for i in range(self.count) if i != self.index}
        for n in itertools.count(1):
            if self._left.wait(HEARTBEAT):
                return
            try:
                store.replace(f"beat/{self.index}", str(n))
                beats, gone = store.under("beat/"), store.under("gone/")
            except Exception:  # whatever the runtime raises
                self._end(store, "process 0, the coordinator, is gone")
                return
            if self.are_stopping and self._ending.acquire(blocking=False):
                self._linger()
                self._on_stop()
                return
            reason = self._lost(heard, beats, gone)
            if reason:
                self._end(store, reason)
                return

    def _end(self, store: Store, reason: str) -> None:
        if self._ending.acquire(blocking=False):
            self._tell(store, reason)
            self._on_loss(reason)

    def _lost(self, heard: dict[int, tuple[str, int]], beats: dict[str, str], gone: dict[str, str]) -> str:
        for i, (last, unchanged) in heard.items():
            if f"gone/{i}" in gone:
                return f"process {i} ended: {gone[f'gone/{i}']}"
            beat = beats.get(f"beat/{i}", "")
            heard[i] = beat, 0 if beat != last else unchanged + 1
            if heard[i][1] * HEARTBEAT >= SILENCE:
                return f"process {i} has not answered for {SILENCE:.0f} seconds"
        return ""


def gathered(text: str) -> list[str]:
    """Return the texts of all processes, by a collective operation."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.array([encoded.size])))
    rows = multihost_utils.process_allgather(np.pad(encoded, (0, sizes.max() - encoded.size))).reshape(len(sizes), -1)
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def _check(address: str, count: int | None, index: int | None) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ProcessesError(f"--coordinator: expected HOST:PORT or {AUTOMATIC}, got {address!r}")
    if count is None or index is None:
        raise ProcessesError("--coordinator: expected --num-processes and --process-id with it, got none; give both")
    if not 0 <= index < count:
        raise ProcessesError(f"--process-id: expected 0 to {count - 1}, one less than --num-processes, got {index}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
