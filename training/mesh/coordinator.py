"""The key-value store of JAX's coordinator, through which processes exchange messages outside the computation.

It is internal to JAX, because no public API serves (tried with jax 0.10.2 and 0.12.0): a collective operation times out
while another process still tokenizes its data. Orbax uses the same store.
"""

import importlib


class Store:
    """The store of this process's coordinator: texts by name."""

    def __init__(self) -> None:
        self._client = importlib.import_module("jax._src.distributed").global_state.client

    def put(self, name: str, text: str) -> None:
        """Set the text of a new name."""
        self._client.key_value_set(name, text)

    def wait_for(self, name: str, seconds: float) -> str:
        """Return the text of a name once it is set."""
        return self._client.blocking_key_value_get(name, int(1000 * seconds))
