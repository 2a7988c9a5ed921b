"""Several devices of one process: the batch is split among them, and with `fsdp` the parameters too.

XLA inserts the communication (an Auto mesh); the mathematics of an update stays that of one device, up to rounding.
"""

import contextlib
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from training.settings import SHARDINGS

AXIS = "data"


class Sharding:
    """Where the arrays of a training lie.

    Attributes:
        batch: of every array of a batch, by its first axis; None where there is one device.
    """

    def __init__(self, kind: str, batch_size: int) -> None:
        """Choose the devices.

        Args:
            kind: "none" for one device; "data" splits the batch over all of them and "fsdp" the parameters too.
            batch_size: sequences in an update.

        Raises:
            ValueError: an unknown kind, or a batch that cannot be split evenly.
        """
        if kind not in SHARDINGS:
            raise ValueError(f"there is no sharding {kind!r}; choose one of {', '.join(SHARDINGS)}")
        self._kind = kind
        self._mesh = None
        self.batch: NamedSharding | None = None
        if kind == "none":
            return
        n = jax.device_count()
        if batch_size % n:
            raise ValueError(f"batch_size is {batch_size}, no multiple of the {n} devices of sharding {kind}")
        self._mesh = jax.make_mesh((n,), (AXIS,), axis_types=(AxisType.Auto,))
        self.batch = NamedSharding(self._mesh, P(AXIS))

    def of(self, tree: Any) -> Any:
        """Return the sharding of every array of a pytree, or None where there is one device.

        With fsdp an array is split along its largest axis that the devices divide; else each device has all of it.

        Args:
            tree: of whatever has a shape.
        """
        mesh = self._mesh
        if mesh is None:
            return None
        return jax.tree.map(lambda leaf: NamedSharding(mesh, self._spec(leaf.shape, mesh.size)), tree)

    def _spec(self, shape: tuple[int, ...], n: int) -> P:
        divided = [(size, -axis) for axis, size in enumerate(shape) if size % n == 0 and size]
        if self._kind == "data" or not divided:
            return P()
        axis = -max(divided)[1]
        return P(*(AXIS if i == axis else None for i in range(len(shape))))

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which programs are traced, so that attention divides its heads and sequences."""
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

    def place(self, tree: Any) -> Any:
        """Return a pytree of NumPy arrays as arrays on the devices."""
        shardings = self.of(tree)
        if shardings is None:
            return jax.tree.map(jax.numpy.array, tree)
        return jax.tree.map(lambda leaf, sharding: jax.device_put(np.array(leaf), sharding), tree, shardings)
