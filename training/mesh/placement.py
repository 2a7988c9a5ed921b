"""Where the arrays of a training lie: parameters and optimizer state by the table, batches by their sequences.

XLA inserts the communication (a mesh of type Auto); the mathematics of an update stays that of one device, up to
rounding.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from training.mesh.shape import OF_BATCH, check_devices, parse, written
from training.mesh.table import spec_of


class Placement:
    """The devices of a training and what lies where on them.

    Attributes:
        sizes: of the axes of the mesh; none for one device.
    """

    def __init__(self, mesh: str = "", devices: Sequence[Any] | None = None) -> None:
        """Choose the devices.

        Args:
            mesh: such as "data=4,model=2"; "" for one device.
            devices: those of the mesh; None for all there are.

        Raises:
            MeshError: the mesh is none, or has another number of devices.
        """
        self.sizes = parse(mesh)
        self._mesh: Mesh | None = None
        if self.sizes:
            check_devices(self.sizes, jax.device_count() if devices is None else len(devices))
            types = (AxisType.Auto,) * len(self.sizes)
            shape = tuple(self.sizes.values())
            if devices is None:
                self._mesh = jax.make_mesh(shape, tuple(self.sizes), axis_types=types)
            else:
                self._mesh = Mesh(np.array(devices).reshape(shape), tuple(self.sizes), axis_types=types)

    @property
    def n_devices(self) -> int:
        """How many devices share the work."""
        return 1 if self._mesh is None else self._mesh.size

    @property
    def devices(self) -> str:
        """The devices, in words."""
        kind = jax.devices()[0].device_kind
        return kind if self._mesh is None else f"{self.n_devices} × {kind} ({written(self.sizes)})"

    def placed(self, tree: Any) -> Any:
        """Return shapes of parameters, or of optimizer state, with where each of the arrays lies.

        Args:
            tree: of whatever has shape and dtype; the last name on the path to a leaf is its symbol.
        """

        def of_leaf(path, leaf):
            sharding = self._on_mesh(spec_of(_symbol(path), leaf.shape, self.sizes))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree_util.tree_map_with_path(of_leaf, tree)

    def batch(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Return a batch, divided by its sequences."""
        return arrays if self._mesh is None else jax.device_put(dict(arrays), self.of_batch)

    @property
    def of_batch(self) -> Sharding:
        """Where an array of a batch lies."""
        return self._on_mesh(P(tuple(axis for axis in OF_BATCH if axis in self.sizes)))

    def gathered(self, tree: Any) -> Any:
        """Return a pytree of arrays, all of each on one device."""
        return tree if self._mesh is None else jax.device_put(jax.device_get(tree))  # else the type keeps the mesh

    def _on_mesh(self, spec: P) -> Sharding:
        return SingleDeviceSharding(jax.local_devices()[0]) if self._mesh is None else NamedSharding(self._mesh, spec)

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which programs are traced, so that each device computes its own share."""
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

    def compiled(self, function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any) -> Any:
        """Return a function, compiled for arguments that lie where they do, and for the devices of the mesh."""
        with self.in_use():
            return jax.jit(function, **options).lower(*arguments).compile()


def _symbol(path: Any) -> str:
    names = [key.name for key in path if hasattr(key, "name")]
    return names[-1] if names else ""
