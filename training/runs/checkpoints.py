"""Checkpoints, with orbax: written in the background, atomically, and verified when read.

orbax writes a step into a temporary folder and renames it when complete, so a process that is killed leaves no partial
checkpoint. It does not detect corruption on disk, so a checksum of every array is saved with it. A checkpoint that
cannot be read, or does not match its checksums, is set aside, and the one before it is restored.

A checksum is the sum of an array's words modulo 2³², each times an odd number that depends on its position: any flipped
bit changes it, and each device can sum its own part, in any order.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from training.disk import reason
from training.runs.interrupts import Interrupted
from training.runs.named_arrays import flatten, unflatten

DAMAGED = "damaged"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message says what to do."""


class Restored(NamedTuple):
    """A verified checkpoint."""

    step: int  # updates done
    trees: dict[str, Any]  # pytrees of arrays, by name
    meta: dict[str, Any]  # the JSON saved with them


def saved_steps(directory: Path) -> list[int]:
    """Return the steps that have a complete checkpoint, newest first."""
    return sorted((int(path.name) for path in directory.glob("*") if path.name.isdigit()), reverse=True)


def read_checkpoint(directory: Path, step: int, templates: Mapping[str, Any]) -> Restored:
    """Read and verify one checkpoint, or raise CheckpointError. An item's template is a pytree of anything with shape
    and dtype; leaves with a sharding are read as JAX arrays, others as NumPy arrays.
    """
    import orbax.checkpoint as ocp

    names = {item: flatten(template) for item, template in templates.items()}
    items: dict[str, Any] = {}
    for item, leaves in names.items():
        targets = {k: v if getattr(v, "sharding", None) else np.empty(v.shape, v.dtype) for k, v in leaves.items()}
        items[item] = ocp.args.StandardRestore(targets)
    arguments = ocp.args.Composite(meta=ocp.args.JsonRestore(), **items)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            read = reader.restore(directory.absolute() / str(step), args=arguments)
        record = read["meta"]["record"]
        if zlib.crc32(record.encode()) != read["meta"]["checksum"]:
            raise ValueError("wrong checksum of its description")
        record = json.loads(record)
    except Exception as error:  # whatever the storage library raises for a damaged file
        raise CheckpointError(_first_line(error)) from error
    for item in names:
        saved, found = record["sums"][item], sums(read[item])
        wrong = [name for name in saved if saved[name] != found.get(name)]
        if wrong:
            raise CheckpointError(f"wrong checksum of {item}.{wrong[0]}")
    trees = {item: unflatten(template, read[item]) for item, template in templates.items()}
    return Restored(step, trees, record["meta"])


class Checkpoints:
    """The checkpoints in a directory; the newest `max_to_keep` are kept."""

    def __init__(self, directory: Path, *, max_to_keep: int) -> None:
        import orbax.checkpoint as ocp

        self._directory = directory.absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=max_to_keep, cleanup_tmp_directories=True)
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        except OSError as error:
            raise CheckpointError(f"cannot make {directory}: {reason(error)}") from None

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, newest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def save(self, step: int, trees: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Write the arrays in the background, or raise CheckpointError if that, or the previous time, fails."""
        import orbax.checkpoint as ocp

        self.wait()
        if step in self._manager.all_steps():
            return
        arrays = {  # copied unless immutable, since the caller may change them while they are written
            item: {k: v if isinstance(v, jax.Array) else np.array(v) for k, v in flatten(tree).items()}
            for item, tree in trees.items()
        }
        record = json.dumps({"meta": dict(meta), "sums": {item: sums(leaves) for item, leaves in arrays.items()}})
        items: dict[str, Any] = {item: ocp.args.StandardSave(leaves) for item, leaves in arrays.items()}
        items["meta"] = ocp.args.JsonSave({"record": record, "checksum": zlib.crc32(record.encode())})
        try:
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise self._not_written(error) from error

    def wait(self) -> None:
        """Wait until the last checkpoint is complete, or raise CheckpointError if it cannot be written."""
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:  # whatever the storage library raises in its threads
            raise self._not_written(error) from error

    def restore_latest(self, templates: Mapping[str, Any], warn: Callable[[str], None]) -> Restored | None:
        """Read the newest checkpoint that verifies, if any; damaged ones are set aside. CheckpointError: all are."""
        steps = self.steps()
        for step in steps:
            try:
                return read_checkpoint(self._directory, step, templates)
            except CheckpointError as error:
                aside = self._set_aside(step)
                warn(f"the checkpoint of step {step} is damaged ({error}); it is set aside in {aside}")
        if steps:
            raise CheckpointError(
                f"all checkpoints in {self._directory} are damaged; to start over, name another directory"
            )
        return None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except CheckpointError:
            if error is None or isinstance(error, Interrupted):
                raise

    def close(self) -> None:
        """Wait for the last checkpoint and end orbax's threads, or raise CheckpointError if it cannot be written."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def _set_aside(self, step: int) -> Path:
        aside = self._directory.parent / f"{self._directory.name}-{DAMAGED}"
        number = 1 + max((int(p.name.rpartition("-")[2]) for p in aside.glob(f"{step}-*")), default=0)
        target = aside / f"{step}-{number}"
        multihost_utils.sync_global_devices(f"read {target}")  # by all processes
        if jax.process_index() == 0:
            aside.mkdir(exist_ok=True)
            (self._directory / str(step)).rename(target)
        multihost_utils.sync_global_devices(f"set {target} aside")
        self._manager.reload()
        return target

    def _not_written(self, error: Exception) -> CheckpointError:
        steps = [step for step in self.steps() if (self._directory / str(step)).is_dir()]
        last = f"the last good one is of step {steps[0]}" if steps else "there is no earlier one"
        return CheckpointError(
            f"cannot write a checkpoint to {self._directory}: {_first_line(error)}; {last}. "
            f"Make room, and rerun the command to {'resume from there' if steps else 'start over'}"
        )


def _first_line(error: Exception) -> str:
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code:  # the rest of tensorstore's message is about its database
        return os.strerror(int(code[1]))
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def sums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Return a checksum of each array, including its shape and dtype, by name; equal for NumPy's and JAX's arrays."""
    on_devices = {name: leaf for name, leaf in leaves.items() if not _is_on_host(leaf)}
    found = _sums(on_devices) if on_devices else {}
    found |= {name: _host_sum(leaf) for name, leaf in leaves.items() if name not in on_devices}
    return {name: zlib.crc32(f"{leaf.dtype}{leaf.shape}{int(found[name])}".encode()) for name, leaf in leaves.items()}


def _is_on_host(leaf: Any) -> bool:
    """Whether NumPy can read the array in place, without compiling anything."""
    if not isinstance(leaf, jax.Array):
        return True
    return leaf.is_fully_addressable and all(device.platform == "cpu" for device in leaf.devices())


def _axis_terms(xp: Any, axis: int, n: int) -> Any:
    """The axis's terms of the words' multipliers, by position: even, so that 1 plus all axes' terms is odd."""
    place = (xp.arange(n, dtype=xp.uint32) + xp.uint32(axis + 1)) * xp.uint32(0x9E3779B1)
    return (place ^ (place >> 15)) * xp.uint32(0x85EBCA76)


@jax.jit
def _sums(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: _sum(leaf) for name, leaf in leaves.items()}


def _sum(array: jax.Array) -> jax.Array:
    """The sum of an array's 32-bit words, whose last axis has those of each number (one, unless it is longer)."""
    array = array.astype(jnp.uint8) if array.dtype == bool else array
    bits = jax.lax.bitcast_convert_type(array, f"uint{min(32, 8 * array.dtype.itemsize)}").astype(jnp.uint32)
    words = bits.reshape(*array.shape, -1)
    place = jnp.ones((1,) * words.ndim, jnp.uint32)
    for axis, n in enumerate(words.shape):
        place = place + _axis_terms(jnp, axis, n).reshape([n if i == axis else 1 for i in range(words.ndim)])
    return (words * place).sum(dtype=jnp.uint32)


def _host_sum(array: Any) -> int:
    """`_sum` axis by axis, without an array of multipliers: Σ w·(1 + Σ_axis a) = Σ w + Σ_axis Σ a·(Σ_others w)."""
    array, total = np.asarray(array), 0
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{min(4, array.dtype.itemsize)}")
    words = bits.astype(np.uint32, copy=False).reshape(*array.shape, max(1, array.dtype.itemsize // 4))
    for axis in reversed(range(words.ndim)):
        others = words.sum(axis=tuple(range(axis)), dtype=np.uint32)
        total += int((others * _axis_terms(np, axis, words.shape[axis])).sum(dtype=np.uint32))
        words = words.sum(axis=axis, dtype=np.uint32)
    return (total + int(words)) % 2**32
