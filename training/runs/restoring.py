"""Reading a checkpoint: what was saved, or what is wrong with it.

Only wrong checksums and a wrong format are damage. Whatever else prevents reading, such as too little memory or a
failing disk, says nothing about the checkpoint, and is raised as it is.
"""

import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from training.mesh.processes import gathered
from training.runs.named_arrays import flatten, unflatten
from training.runs.sums import sums

T = TypeVar("T")

FORMAT_ERRORS = (ValueError, KeyError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
NOT_OF_THE_FORMAT = re.compile(
    "(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|PERMISSION_DENIED|RESOURCE_EXHAUSTED|UNAUTHENTICATED|UNAVAILABLE): "
)
"""Start of tensorstore's ValueError messages that say nothing about a file's contents."""
OS_ERROR = re.compile(r"os_error_code='(\d+)'")
"""The operating system's error in a message of tensorstore, the rest of which is about its database."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message says what to do."""


class DamagedError(CheckpointError):
    """A checksum or the format of a checkpoint is wrong."""


class Restored(NamedTuple):
    """A verified checkpoint."""

    step: int  # updates done
    trees: dict[str, Any]  # pytrees of arrays, by name
    meta: dict[str, Any]  # the JSON saved with them


def read_checkpoint(directory: Path, step: int, templates: Mapping[str, Any]) -> Restored:
    """Read and verify one checkpoint. An item's template is a pytree of anything with shape and dtype; leaves with a
    sharding are read as JAX arrays, others as NumPy arrays. Raises DamagedError if its checksums or format are wrong,
    CheckpointError if it holds other arrays, and whatever else prevents reading as it is. If arrays are divided among
    processes, all of them call this, and raise an error if one of them does.
    """
    path, names = directory.absolute() / str(step), {item: flatten(template) for item, template in templates.items()}
    leaves = [leaf for of_item in names.values() for leaf in of_item.values()]
    divided = not all(getattr(getattr(leaf, "sharding", None), "is_fully_addressable", True) for leaf in leaves)
    record, read = together(divided, path, lambda: _read(path, names))

    def verify() -> None:
        for item in names:
            found = sums(read[item])
            wrong = [name for name, saved in record["sums"][item].items() if saved != found.get(name)]
            if wrong:
                raise DamagedError(f"wrong checksum of {item}.{wrong[0]}")

    together(divided, path, verify)
    return Restored(step, {item: unflatten(templates[item], read[item]) for item in names}, record["meta"])


def together(divided: bool, path: Path, act: Callable[[], T]) -> T:
    """Call a function that reads from `path`; if all processes do, an error in one is raised in all, damage last."""
    result, error = None, None
    try:
        result = act()
    except Exception as raised:
        error = raised
    if divided:
        outcome = None if error is None else [isinstance(error, DamagedError), first_line(error)]
        outcomes = [json.loads(text) for text in gathered(json.dumps(outcome))]
        failed = next((i for i, found in enumerate(outcomes) if found and not found[0]), None)
        damaged = next((found[1] for found in outcomes if found), None)
        if failed is not None and (error is None or isinstance(error, DamagedError)):
            raise CheckpointError(f"process {failed} cannot read {path}: {outcomes[failed][1]}; nothing was changed")
        if error is None and damaged is not None:
            raise DamagedError(damaged)
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def _read(path: Path, names: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], Any]:
    """Read a checkpoint's description and, of each item, the arrays of this process, without waiting for others."""
    import orbax.checkpoint as ocp

    try:
        record = _record(path)
        _check_arrays(path, names, record)
        items: dict[str, Any] = {}
        for item, leaves in names.items():
            targets = {k: v if getattr(v, "sharding", None) else np.empty(v.shape, v.dtype) for k, v in leaves.items()}
            items[item] = ocp.args.StandardRestore(targets)
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
        options = ocp.CompositeOptions(multiprocessing_options=alone)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
            return record, reader.restore(path, args=ocp.args.Composite(**items))
    except FORMAT_ERRORS as error:
        code = OS_ERROR.search(str(error))
        if code and int(code[1]) not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
        if NOT_OF_THE_FORMAT.match(str(error)):
            raise
        raise DamagedError(first_line(error)) from error


def description_of(meta: Mapping[str, Any], **of_arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is saved with the arrays: the JSON `meta` and, of each item's arrays, `sums` and `types` by name."""
    record = json.dumps({"meta": dict(meta), **of_arrays})
    return {"record": record, "checksum": zlib.crc32(record.encode())}


def _record(path: Path) -> dict[str, Any]:
    try:
        read = json.loads((path / "meta" / "metadata").read_bytes())
        if zlib.crc32(read["record"].encode()) != read["checksum"]:
            raise ValueError("wrong checksum of its description")
        return json.loads(read["record"])
    except (TypeError, AttributeError):
        raise ValueError("its description is not one") from None


def _check_arrays(path: Path, names: Mapping[str, Mapping[str, Any]], record: dict[str, Any]) -> None:
    """Raise CheckpointError unless these arrays are the ones that were saved."""
    for item, leaves in names.items():
        expected = {name: type_of(leaf) for name, leaf in leaves.items()}
        saved = record["types"].get(item, {})
        for name in sorted(expected.keys() | saved.keys()):
            here, there = expected.get(name, "none"), saved.get(name, "none")
            if here != there:
                raise CheckpointError(
                    f"{path}: expected {item}.{name}: {here}, got {there}; another version of this code or of optax "
                    "wrote it: use that version, or name another directory"
                )


def type_of(leaf: Any) -> str:
    """Return the dtype and shape of an array, or of its shape."""
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def first_line(error: Exception) -> str:
    """Return an error as one line."""
    code = OS_ERROR.search(str(error))
    if code:
        return os.strerror(int(code[1]))
    return (str(error).strip() or type(error).__name__).splitlines()[0]
