"""Checkpoints, with orbax: written in the background, atomically, and verified when read.

orbax writes a step into a temporary folder and renames it when complete, so a process that is killed leaves no partial
checkpoint. It does not detect corruption on disk, so a checksum of every array is saved with it. A checkpoint whose
checksums or format are wrong is set aside, and the one before it is restored.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from training.disk import reason
from training.runs.interrupts import Interrupted
from training.runs.named_arrays import flatten
from training.runs.restoring import (
    CheckpointError,
    DamagedError,
    Restored,
    description_of,
    first_line,
    read_checkpoint,
    together,
    type_of,
)
from training.runs.sums import sums

DAMAGED = "damaged"


def saved_steps(directory: Path) -> list[int]:
    """Return the steps that have a complete checkpoint, newest first."""
    return sorted((int(path.name) for path in directory.glob("*") if path.name.isdigit()), reverse=True)


class Checkpoints:
    """The checkpoints in a directory; the newest `max_to_keep` are kept."""

    def __init__(self, directory: Path, *, max_to_keep: int) -> None:
        import orbax.checkpoint as ocp

        self._directory = directory.absolute()
        self._aside = self._directory.with_name(f"{directory.name}-{DAMAGED}")
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
        items: dict[str, Any] = {item: ocp.args.StandardSave(leaves) for item, leaves in arrays.items()}
        types = {item: {name: type_of(leaf) for name, leaf in leaves.items()} for item, leaves in arrays.items()}
        checksums = {item: sums(leaves) for item, leaves in arrays.items()}
        items["meta"] = ocp.args.JsonSave(description_of(meta, sums=checksums, types=types))
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
        """Read the newest sound checkpoint, if any was saved; set damaged ones aside, or raise if all are."""
        for step in self.steps():
            try:
                return read_checkpoint(self._directory, step, templates)
            except DamagedError as error:
                aside = self._set_aside(step)
                warn(f"the checkpoint of step {step} is damaged ({error}); it is set aside in {aside}")
        if any(self._aside.glob("*")):
            raise CheckpointError(
                f"all checkpoints in {self._directory} are damaged and set aside in {self._aside}; to resume, put a "
                f"sound copy of one into {self._directory}; to start over, name another directory, or delete this run"
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
        number = 1 + max((int(p.name.rpartition("-")[2]) for p in self._aside.glob(f"{step}-*")), default=0)
        target = self._aside / f"{step}-{number}"

        def move() -> None:
            if jax.process_index() == 0:
                self._aside.mkdir(exist_ok=True)
                (self._directory / str(step)).rename(target)

        together(jax.process_count() > 1, self._aside, move)
        self._manager.reload()
        return target

    def _not_written(self, error: Exception) -> CheckpointError:
        steps = [step for step in self.steps() if (self._directory / str(step)).is_dir()]
        last = f"the last good one is of step {steps[0]}" if steps else "there is no earlier one"
        return CheckpointError(
            f"cannot write a checkpoint to {self._directory}: {first_line(error)}; {last}. "
            f"Make room, and rerun the command to {'resume from there' if steps else 'start over'}"
        )
