"""The processes that train together, each with devices of its own; JAX's runtime connects them.

Each tells the coordinator, process 0, every few seconds that it is alive. A process that finds another one
silent, or gone, ends: it would wait forever.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils

from training.mesh.store import Store

BEAT = 2.0  # seconds between two signs of life
SILENCE = 30.0  # seconds without one after which a process counts as gone
TO_AGREE = 1800.0  # seconds: a process that has tokenized its data waits for the others
AUTOMATIC = "auto"


class ProcessesError(ValueError):
    """The processes do not fit together; the message is one sentence."""


class Processes:
    """The processes of a training: one alone, unless it joined others.

    Attributes:
        index: of this one.
        count: of all.
    """

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self._store: Store | None = None
        self._left, self._speaks = threading.Event(), threading.Lock()

    @property
    def is_main(self) -> bool:
        """Whether this process writes what only one may write."""
        return self.index == 0

    def join(self, coordinator: str, count: int | None, index: int | None, on_loss: Callable[[str], None]) -> None:
        """Connect to the others; JAX must not have been used before. Process 0 is found at `coordinator`, HOST:PORT, or
        "auto" for what SLURM, Kubernetes or a Cloud TPU say, count and index too. `on_loss` is called in another thread
        with a sentence when another process is gone; it ends this one. Raises ProcessesError if the numbers are
        invalid, or are missing, and StoreError if this version of JAX is not known to keep a store for them.
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
            raise ProcessesError(
                f"nothing here says which processes there are ({error}): give coordinator HOST:PORT, num_processes "
                "and process_id"
            ) from None
        self.index, self.count = jax.process_index(), jax.process_count()
        self._store, self._on_loss = Store(), on_loss
        self._beat(self._store, 0)
        threading.Thread(target=self._watch, args=(self._store,), daemon=True).start()

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:
        """Check that all processes, which must all call this, have the same facts, JSON values by name. Raises
        ProcessesError in every process, naming the first difference.
        """
        if self._store is None:
            return
        self._store.put(f"{what}/{self.index}", json.dumps(facts, default=str))
        all_facts = [json.loads(self._store.wait_for(f"{what}/{i}", TO_AGREE)) for i in range(self.count)]
        for i, facts_of_i in enumerate(all_facts):
            for name, value in all_facts[0].items():
                if facts_of_i.get(name) != value:
                    raise ProcessesError(
                        f"process {i} has {name} {_short(facts_of_i.get(name))}, and process 0 {_short(value)}: "
                        "start all of them with the same command, code and data"
                    )

    def broadcast_from_main(self, what: str, value: str) -> str:
        """Return what process 0 has as a value."""
        if self._store is None:
            return value
        if self.is_main:
            self._store.put(what, value)
        return self._store.wait_for(what, TO_AGREE)

    def wait_for_all(self, what: str) -> None:
        """Return when all processes are here."""
        if self.count > 1:
            multihost_utils.sync_global_devices(what)

    def should_stop(self, step: int) -> bool:
        """Whether one of the processes got SIGTERM; all of them say so of the same step."""
        return self.count > 1 and multihost_utils.reached_preemption_sync_point(step)

    def leave(self, reason: str = "") -> None:
        """Tell the others that this process ends, and why if it should not; without a reason, wait for them."""
        if self._store is None or self._left.is_set():
            return
        self._speaks.acquire()  # for good: if the thread that watches has it, that one ends the process
        self._left.set()
        if reason:
            self._tell(self._store, reason)
        else:
            jax.distributed.shutdown()

    def _tell(self, store: Store, reason: str) -> None:
        """Let the others know why this process ends; without the coordinator they could not."""
        with contextlib.suppress(Exception):  # it may be gone
            store.put(f"gone/{self.index}", reason)
            threading.Event().wait(2 * BEAT if self.is_main else 0)

    def _beat(self, store: Store, n: int) -> None:
        store.replace(f"beat/{self.index}", str(n))

    def _watch(self, store: Store) -> None:
        heard = {i: ("", 0) for i in range(self.count) if i != self.index}
        n = 0
        while not self._left.wait(BEAT):
            n += 1
            try:
                self._beat(store, n)
                beats, gone = store.under("beat/"), store.under("gone/")
            except Exception:  # whatever the runtime raises
                self._end(store, "process 0, the coordinator, is gone")
                return
            reason = self._lost(heard, beats, gone)
            if reason:
                self._end(store, reason)
                return

    def _end(self, store: Store, reason: str) -> None:
        if self._speaks.acquire(blocking=False):
            self._tell(store, reason)
            self._on_loss(reason)

    def _lost(self, heard: dict[int, tuple[str, int]], beats: dict[str, str], gone: dict[str, str]) -> str:
        for i, (last, unchanged) in heard.items():
            if f"gone/{i}" in gone:
                return f"process {i} ended: {gone[f'gone/{i}']}"
            beat = beats.get(f"beat/{i}", "")
            heard[i] = beat, 0 if beat != last else unchanged + 1
            if heard[i][1] * BEAT >= SILENCE:
                return f"process {i} has not answered for {SILENCE:.0f} seconds"
        return ""


def _check(address: str, count: int | None, index: int | None) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ProcessesError(f"the coordinator is {address!r}, expected HOST:PORT, or {AUTOMATIC}")
    if count is None or index is None:
        raise ProcessesError("with a coordinator, num_processes and process_id are needed, too")
    if not 0 <= index < count:
        raise ProcessesError(f"process_id is {index}, expected 0 to {count - 1}, one less than num_processes")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
