"""Loading the model that a run has trained, from its parameters or its last checkpoint."""

import contextlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors

from training.data.records import fingerprint
from training.data.tokenizers import load_tokenizer
from training.disk import parse_json, reason, require_file
from training.mesh.padding import padded, unpadded
from training.mesh.placement import Placement, shardings
from training.runs.checkpoints import DAMAGED, CheckpointError, DamagedError, read_checkpoint, saved_steps
from training.runs.directory import Description, Run, RunDirectory, RunError
from training.runs.named_arrays import checksums, flatten, read_tensor, unflatten
from training.tasks.low_rank import adapter_shapes, merged, scale_of
from training.tasks.models import model_shapes

FROZEN = "model to adapt"  # key of the fingerprint of the parameters that a run adapts


def load_run(
    directory: str | Path,
    *,
    dtype: Any = None,
    placement: Placement | None = None,
    lines: Sequence[str] = (),
) -> Run:
    """Load the model of a run: the final parameters, or those of the last good checkpoint if it is unfinished or was
    continued. Final ones are read array by array, each device its part, so that a model is never in memory twice,
    converted to `dtype` (None: as stored) and divided among the devices of `placement` (None: on one device); `lines`
    as in `RunDirectory`. Raises RunError.
    """
    files = RunDirectory(directory, lines=lines)
    if not files.path.is_dir():
        raise RunError(f"there is no run directory {files.path}")
    files.check_files()
    description = files.description()
    tokenizer = load_tokenizer(files.tokenizer)
    if tokenizer.fingerprint() != description.fingerprints["tokenizer"]:
        raise RunError(f"{files.tokenizer} is not the tokenizer that the run began with")
    task = description.settings.task
    if description.settings.lora_rank:
        theta = _in_place(_adapted(files, description, placement), dtype, placement)
        return Run(theta, description.config, tokenizer, task)
    template = model_shapes(task, description.config, N_C=len(description.labels))
    N_V, multiple = description.config.N_V, description.settings.vocabulary_multiple
    if _is_last(files, files.parameters):
        theta = _read_parameters(files.parameters, template, dtype, placement)
    else:
        stored = jax.eval_shape(lambda theta: padded(theta, N_V, multiple), template)
        theta = unpadded(_from_checkpoint(files, description, stored), N_V, multiple)
        theta = _in_place(theta, dtype, placement)
    return Run(theta, description.config, tokenizer, task, description.labels)


def frozen_fingerprint(theta: Any) -> str:
    """Return a hash of the parameters that a run adapts; it does not depend on the dtype they are stored in."""
    leaves = {name: np.asarray(leaf) for name, leaf in flatten(theta).items()}
    wide = {name: checksums({"": a.astype(np.promote_types(a.dtype, np.float32))}) for name, a in leaves.items()}
    return fingerprint(json.dumps(wide))


def _in_place(theta: Any, dtype: Any, placement: Placement | None) -> Any:
    """Convert parameters to a dtype, and divide them among devices."""
    theta = theta if dtype is None else jax.tree.map(lambda a: a.astype(dtype), theta)
    return theta if placement is None else jax.device_put(theta, shardings(placement.placed(theta)))


def _adapted(files: RunDirectory, description: Description, placement: Placement | None) -> Any:
    """Load the parameters of a run that has only an adapter of another run's model."""
    settings = description.settings
    with contextlib.suppress(OSError):  # in the cache, models unused for 30 days are removed
        os.utime(Path(settings.start_from) / "config.json")
    try:
        theta = load_run(settings.start_from, placement=placement, lines=files.lines).theta
    except RunError as error:
        raise RunError(
            f"{files.path} adapts the model of {settings.start_from}, which cannot be read: {error}"
        ) from None
    if frozen_fingerprint(theta) != description.fingerprints.get(FROZEN):
        raise RunError(
            f"{settings.start_from} has other parameters than those that {files.path} adapts: restore the original run"
        )
    adapter = _in_place(read_adapter(files, description, theta), None, placement)
    return merged(theta, adapter, scale_of(settings))


def read_adapter(files: RunDirectory, description: Description, theta: Any) -> Any:
    """Read the adapter of a run, or that of its last good checkpoint, or raise RunError; θ may be shapes."""
    template = adapter_shapes(theta, description.settings)
    if _is_last(files, files.adapter):
        return _read_parameters(files.adapter, template, None, None)
    return _from_checkpoint(files, description, template)


def _is_last(files: RunDirectory, file: Path) -> bool:
    """Return whether a file has the last parameters of a run: none if the run has been continued since."""
    if not file.is_file():
        return False
    try:
        with safetensors.safe_open(file, framework="numpy") as opened:
            step = (opened.metadata() or {}).get("step")
    except (safetensors.SafetensorError, OSError):
        return True  # to be reported by who reads it
    return step is None or not any(saved > int(step) for saved in saved_steps(files.checkpoints))


def _read_parameters(path: Path, template: Any, dtype: Any, placement: Placement | None) -> Any:
    places = flatten((placement or Placement()).placed(template))
    try:
        with safetensors.safe_open(require_file(path), framework="numpy") as file:
            expected = parse_json(file.metadata()["checksums"])
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if shapes != {name: leaf.shape for name, leaf in places.items()}:  # a converted model keeps its dtype
            raise ValueError("its arrays are not those of the model")
        leaves = {name: read_tensor(path, name, leaf.sharding, dtype, expected[name]) for name, leaf in places.items()}
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); delete it to use the last checkpoint") from None
    return unflatten(template, leaves)


def _from_checkpoint(files: RunDirectory, description: Description, template: Any) -> Any:
    """Read the parameters of the last good checkpoint."""
    item = "ema" if description.settings.ema_decay else "params"
    if not saved_steps(files.checkpoints):
        aside = files.checkpoints.with_name(f"{files.checkpoints.name}-{DAMAGED}")
        what = f"only damaged checkpoints, set aside in {aside}" if any(aside.glob("*")) else "no checkpoint yet"
        raise RunError(f"the run in {files.path} has {what}")
    tried: set[int] = set()
    while steps := [step for step in saved_steps(files.checkpoints) if step not in tried]:
        step = steps[0]
        tried.add(step)
        try:
            restored = read_checkpoint(files.checkpoints, step, {item: template})
        except DamagedError as error:
            if (files.checkpoints / str(step)).is_dir():  # a training may have just deleted an old one
                warnings.warn(
                    f"the checkpoint of step {step} is damaged ({error}); the one before it is used", stacklevel=3
                )
            continue
        except CheckpointError as error:
            raise RunError(str(error)) from None
        except OSError as error:
            raise RunError(f"cannot read the checkpoint of step {step} in {files.path}: {reason(error)}") from None
        return jax.device_put(restored.trees[item])  # without a program for each shape
    raise RunError(f"all checkpoints of the run in {files.path} are damaged")
