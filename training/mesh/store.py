"""What processes tell each other by the way, in the store that JAX's coordinator keeps.

This is the only file that reaches inside JAX. In public there is nothing that serves: a collective operation
(`jax.experimental.multihost_utils`) waits for every process, and so for ever for one that has gone; and where JAX's own
heartbeat (`heartbeat_timeout_seconds` of `jax.distributed.initialize`) misses a process, it aborts the others with
status 134, which Python cannot catch to say what happened and where the last checkpoint is. Orbax uses the same store.
"""

import importlib
from typing import Any

import jax

HOME = "jax._src.distributed"
METHODS = ("key_value_set", "blocking_key_value_get", "key_value_dir_get")


class StoreError(RuntimeError):
    """JAX does not have its store where it is looked for; the message is one sentence."""


class Store:
    """The store of the coordinator that this process has joined: texts by their names."""

    def __init__(self) -> None:
        """Find the store, or raise StoreError if this version of JAX has it elsewhere."""
        try:
            self._client: Any = importlib.import_module(HOME).global_state.client
            for method in METHODS:
                getattr(self._client, method)
        except (ImportError, AttributeError) as error:
            raise StoreError(
                f"several processes need the store of JAX's coordinator, which jax {jax.__version__} does not have in "
                f"{HOME} ({error}): train in one process, or install the version of jax that pyproject.toml names"
            ) from None

    def put(self, name: str, text: str) -> None:
        """Give a name its text, which it keeps for good."""
        self._client.key_value_set(name, text)

    def replace(self, name: str, text: str) -> None:
        """Give a name another text."""
        self._client.key_value_set(name, text, allow_overwrite=True)

    def wait_for(self, name: str, seconds: float) -> str:
        """Return the text of a name, as soon as it is there."""
        return self._client.blocking_key_value_get(name, int(1000 * seconds))

    def under(self, prefix: str) -> dict[str, str]:
        """Return all texts whose names begin like this."""
        return dict(self._client.key_value_dir_get(prefix))
