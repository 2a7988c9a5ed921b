"""Several processes that train together, each on its own devices, connected by JAX's runtime, which aborts them if it
finds another one silent or gone: `training.command_line.supervision` says so.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from training.mesh.coordinator import Store

SILENCE = 30  # seconds without a heartbeat after which a process counts as gone
LINGERING = 4.0  # seconds in which the others read why this process ends
AGREEMENT_TIMEOUT = 1800.0  # seconds to wait for the other processes, which may still tokenize their data
AUTOMATIC = "auto"


class ProcessesError(ValueError):
    """The processes do not fit together; the message is one sentence."""


class Processes:
    """The processes of a training: this one alone, until it joins others; its `index` among their `count`."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self._store: Store | None = None
        self._points = 0  # calls of should_stop

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which alone writes the shared files."""
        return self.index == 0

    def join(self, coordinator: str, count: int | None, index: int | None) -> None:
        """Connect to the other processes, before JAX is used, at HOST:PORT of process 0, or "auto" to ask SLURM,
        Kubernetes or a Cloud TPU, or raise ProcessesError.
        """
        address = None if coordinator == AUTOMATIC else coordinator
        if address is not None:
            _check(address, count, index)
        loopback = address is not None and address.rpartition(":")[0] in ("localhost", "127.0.0.1")
        bind = address if loopback and index == 0 else None
        try:
            jax.distributed.initialize(
                address, count, index, coordinator_bind_address=bind, heartbeat_timeout_seconds=SILENCE
            )
        except ValueError as error:
            give = "give HOST:PORT, --num-processes and --process-id"
            raise ProcessesError(
                f"--coordinator: expected a cluster that JAX detects, got none ({error}); {give}"
            ) from None
        self.index, self.count, self._store = jax.process_index(), jax.process_count(), Store()

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

    def should_stop(self) -> bool:
        """Return whether a process received SIGTERM; all processes call this equally often, and return true at once."""
        self._points += 1
        return self.count > 1 and multihost_utils.reached_preemption_sync_point(self._points)

    def leave(self, *, fails: bool = False) -> None:
        """Leave the other processes once all are done, or if this one fails, at once; the coordinator lingers."""
        if self.count == 1:
            return
        if not fails:
            jax.distributed.shutdown()
        elif self.is_main:
            threading.Event().wait(LINGERING)


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
