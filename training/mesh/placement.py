"""A mesh's division of a training's arrays: parameters and optimizer state by their lines, batches by their sequences.

XLA inserts the communication (all mesh axes are Auto); an update computes the same as on one device, up to rounding.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from algorithms import mesh_axes, partition_specs
from training.mesh.shape import check_devices, parse, written

COMPILER_OPTIONS: dict[str, dict[str, Any]] = {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}}
"""By platform: XLA for TPUs would split products with gathered weights into loops that take twice the cycles."""


class Placement:
    """The devices of a training and the placement of arrays on them; `sizes` are those of the mesh's axes."""

    def __init__(
        self,
        mesh: str | Mesh = "",
        devices: Sequence[Any] | None = None,
        *,
        data: str | None = "data",
        model: str | None = "model",
    ) -> None:
        """Arrange the devices (default: all) as in "data=4,model=2", "" being one device, or use a given mesh.

        `data` and `model` are its axes for `partition_specs`, and all axes but `model` and "context" divide a batch.
        Raises MeshError, and ValueError if the mesh lacks a name.
        """
        self._axes = {"data": data, "model": model}
        self.sizes = parse(mesh) if isinstance(mesh, str) else dict(mesh.shape)
        self._mesh: Mesh | None = None
        if self.sizes:
            self._mesh = Mesh(
                self._places(mesh, devices), tuple(self.sizes), axis_types=(AxisType.Auto,) * len(self.sizes)
            )
            partition_specs((), self._mesh, **self._axes)  # refuses names that the mesh lacks

    def _places(self, mesh: str | Mesh, devices: Sequence[Any] | None) -> np.ndarray:
        """The devices, in the shape of the mesh."""
        if not isinstance(mesh, str):
            return mesh.devices
        shape = tuple(self.sizes.values())
        check_devices(self.sizes, jax.device_count() if devices is None else len(devices))
        return jax.make_mesh(shape, tuple(self.sizes)).devices if devices is None else np.array(devices).reshape(shape)

    @property
    def n_devices(self) -> int:
        """Number of devices that share the work."""
        return 1 if self._mesh is None else self._mesh.size

    @property
    def n_local_devices(self) -> int:
        """Number of devices of this process."""
        return 1 if self._mesh is None else self._mesh.local_mesh.size

    @property
    def devices(self) -> str:
        """The devices, in words."""
        kind = jax.devices()[0].device_kind
        return kind if self._mesh is None else f"{self.n_devices} × {kind} ({written(self.sizes)})"

    def placed(self, tree: Any) -> Any:
        """Return the shapes of parameters or optimizer state with their shardings, by `partition_specs`."""
        one = jax.tree.map(lambda _: P(), tree)
        specs = one if self._mesh is None else partition_specs(tree, self._mesh, **self._axes)

        def of_leaf(leaf, spec):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._on_mesh(spec))

        return jax.tree.map(of_leaf, tree, specs)

    def rows(self, batch_size: int) -> slice:
        """Return the sequences of a batch that the devices of this process need."""
        if jax.process_count() == 1:
            return slice(None)
        places: Any = self.of_batch.addressable_devices_indices_map((batch_size,)).values()
        ranges = [rows.indices(batch_size) for (rows,) in places]
        return slice(min(first for first, _, _ in ranges), max(end for _, end, _ in ranges))

    def batch(self, arrays: Mapping[str, np.ndarray], batch_size: int) -> Mapping[str, Any]:
        """Return the arrays of a batch of `batch_size`, on the devices; `arrays` have the sequences of `rows`."""
        if self._mesh is None:
            return arrays
        if jax.process_count() == 1:
            return jax.device_put(dict(arrays), self.of_batch)
        first = self.rows(batch_size).start

        def whole(array):
            def of_device(index):
                start, end, _ = index[0].indices(batch_size)
                return array[start - first : end - first]

            return jax.make_array_from_callback((batch_size, *array.shape[1:]), self.of_batch, of_device)

        return {name: whole(array) for name, array in arrays.items()}

    @property
    def of_batch(self) -> Sharding:
        """The sharding of a batch's arrays."""
        return self._on_mesh(P(tuple(axis for axis in self.sizes if axis not in (self._axes["model"], "context"))))

    def gathered(self, tree: Any) -> Any:
        """Return a pytree with each array whole: on one device, or in NumPy in each of several processes."""
        if jax.process_count() > 1:
            return jax.tree.map(lambda array: multihost_utils.process_allgather(array, tiled=True), tree)
        return tree if self._mesh is None else jax.device_put(jax.device_get(tree))  # else the type keeps the mesh

    def _on_mesh(self, spec: P) -> Sharding:
        return SingleDeviceSharding(jax.local_devices()[0]) if self._mesh is None else NamedSharding(self._mesh, spec)

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context to trace programs in, so that each device computes its share."""
        stack = contextlib.ExitStack()
        if self._mesh is not None:
            stack.enter_context(jax.set_mesh(self._mesh))
            stack.enter_context(mesh_axes(model=self._axes["model"] or "model"))
        return stack

    def compiled(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], platform: str | None = None, **options: Any
    ) -> Any:
        """Return a function compiled for arguments with shardings, for the devices or another `platform`."""
        with self.in_use():
            traced = jax.jit(function, **options).trace(*arguments)
            lowered = traced.lower(lowering_platforms=None if platform is None else (platform,))
        kind = "" if self._mesh is None else self._mesh.devices.flat[0].platform
        return lowered.compile(compiler_options=COMPILER_OPTIONS.get(kind))


def shardings(tree: Any) -> Any:
    """Return the sharding of each array, or shape, of a pytree."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)
