"""The directory of a run: its files (docs/training.md has a table of them), and what is written into them."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from training.data.tokenizers import Tokenizer
from training.disk import (
    NO_LOCKS,
    as_json,
    local_path,
    parse_json,
    read_text,
    reason,
    remove_unfinished,
    require_file,
    write_atomically,
)
from training.runs.checkpoints import saved_steps
from training.runs.named_arrays import checksums, flatten, save_tensors
from training.runs.resuming import differences, moved
from training.settings import Settings
from training.tasks import settings_from, settings_to_json
from training.tasks.models import config_from_json, config_to_json
from training.tasks.own_lines import has_custom_lines

FORMAT = "formal-algorithms run 4"
SHARED = ".unfinished"  # suffix of a file by which processes see that they share the directory


class RunError(ValueError):
    """A directory is not a run, or is another run; the message is one sentence."""


class Run(NamedTuple):
    """A trained model."""

    theta: Any  # parameters
    config: Any  # sizes and variant
    tokenizer: Tokenizer
    task: str  # one of `training.tasks.TASKS`
    labels: tuple[str, ...] = ()  # classes, by number; empty unless the task is classification


class Description(NamedTuple):
    """The contents of config.json."""

    settings: Settings  # of the training
    config: Any  # of the model
    labels: tuple[str, ...]  # classes, by number
    fingerprints: dict[str, str]  # of tokenizer and data
    origin: str = ""  # of a converted model of the hub: its name and commit

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON."""
        return {
            "format": FORMAT,
            "task": self.settings.task,
            "settings": settings_to_json(self.settings),
            "model": config_to_json(self.config),
            "labels": list(self.labels),
            "fingerprints": self.fingerprints,
            **({"origin": self.origin} if self.origin else {}),
        }


class RunDirectory:
    """The files of a run. Its config.json may name custom classes: installed ones, those of modules that are
    imported already, and those in the packages `lines` are imported; no other code of a run is ever executed.
    """

    def __init__(self, path: str | Path, *, lines: Sequence[str] = ()) -> None:
        self.path, self.lines = local_path(path), tuple(lines)
        self.config = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.metrics = self.path / "metrics.jsonl"
        self.picture = self.path / "loss.png"
        self.tensorboard = self.path / "tensorboard"
        self.profile = self.path / "profile"
        self.checkpoints = self.path / "checkpoints"
        self.parameters = self.path / "parameters.safetensors"
        self.adapter = self.path / "adapter.safetensors"
        self.results = self.path / "results.json"
        self.lock = self.path / ".lock"
        self._state: Any = None  # what config.json has, once it is read

    def exists(self) -> bool:
        """Return whether a run began here, or raise RunError if something else is here."""
        self.check_files()
        if self.config.is_file():
            return True
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: expected a directory, got a file; name another one")
        kept = self.path.iterdir() if self.path.is_dir() else ()
        ours = (self.lock, self.path / "wandb")  # which a start that failed leaves
        if any(p not in ours and not (p.suffix == SHARED or p.name.startswith(".unfinished-")) for p in kept):
            if self.tokenizer.is_file():
                return False  # a run that ended before its first step
            raise RunError(
                f"{self.path} is not empty, but it has no config.json, so it is not a run directory: name another one"
            )
        return False

    def check_files(self) -> None:
        """Raise RunError unless the run's files are regular ones, and not links if written in place."""
        written = (self.metrics, self.picture, self.parameters, self.adapter, self.results)
        for file in (self.config, self.tokenizer, *written):
            if file in (self.metrics, self.picture) and file.is_symlink():
                raise RunError(f"{file}: expected a file, got a symbolic link; delete it, or name another directory")
            try:
                if file.exists():
                    require_file(file)
            except OSError as error:
                raise RunError(f"{file}: {reason(error)}; name another directory") from None

    def settings(self) -> Settings:
        """Return the settings in config.json, without its classes, or raise RunError as `description`."""
        with self._errors_of_config():
            return self._settings_in(self._read())

    def description(self) -> Description:
        """Return the contents of config.json, or raise RunError if it is missing or damaged."""
        with self._errors_of_config():
            state = self._read()
            settings = self._settings_in(state)
            config = config_from_json(state["task"], state["model"], self.lines)
            if "tokenizer" not in state["fingerprints"]:
                raise ValueError("fingerprints: expected one of the tokenizer, got none")
            labels, fingerprints = tuple(state["labels"]), dict(state["fingerprints"])
            return Description(settings, config, labels, fingerprints, state.get("origin", ""))

    def _read(self) -> Any:
        self._state = self._state or parse_json(read_text(self.config))
        return self._state

    @staticmethod
    def _settings_in(state: Any) -> Settings:
        if state.get("format") != FORMAT:
            raise ValueError(f"format: expected {FORMAT!r}, got {state.get('format')!r}; train it again")
        return settings_from(state["settings"], task=state["task"])

    @contextlib.contextmanager
    def _errors_of_config(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.path} is not a run directory: cannot read {self.config}: {reason(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{self.config} cannot be read: {error}") from None

    @contextlib.contextmanager
    def locked(self, warn: Callable[[str], None]) -> Iterator[None]:
        """Create the directory and lock it, or `warn` if its file system has no locks; remove what killed processes
        left unfinished, and at the end the directory if it is empty. Raises RunError if another process trains here, or
        it cannot be written to.
        """
        lock = filelock.FileLock(self.lock, blocking=False, thread_local=False, fallback_to_soft=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make {self.path}: {reason(error)}") from None
        try:
            lock.acquire()
        except filelock.Timeout:
            raise RunError(f"another process trains in {self.path}: wait for it, or name another directory") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise RunError(f"cannot write to {self.path}: {reason(error)}; name another directory") from None
            warn(f"the file system of {self.path} has no locks: make sure that no other process trains there")
        self._state = None  # another process may have changed it until now
        try:
            remove_unfinished(self.path)
            for left in self.path.glob(f"*{SHARED}"):
                left.unlink(missing_ok=True)
            yield
        finally:
            with contextlib.suppress(OSError):  # before its release: who has opened it sees that it is gone
                self.lock.unlink()
            lock.release()
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def resume(self, description: Description) -> None:
        """Check that the run here may continue as described, and update config.json, or raise RunError."""
        self.check_continues(description)
        if self.description().settings != description.settings:
            self.note(description)

    def note(self, description: Description, tokenizer: Tokenizer | None = None) -> None:
        """Write config.json, after tokenizer.json if a run begins with one, or raise RunError if that is impossible."""
        text = json.dumps(description.to_json(), indent=1, ensure_ascii=False)
        try:
            if tokenizer is not None:
                self.path.mkdir(parents=True, exist_ok=True)
                write_atomically(self.tokenizer, tokenizer.save)
            escaped = text.encode("utf-8", "backslashreplace")  # as JSON does: bytes of paths that are not UTF-8
            write_atomically(self.config, lambda path: path.write_bytes(escaped + b"\n"))
            self._state = None
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {reason(error)}") from None

    def check_continues(self, description: Description) -> None:
        """Check that the run here is the one described, or raise RunError, naming the difference."""
        began = self.description()
        before, now = began.config.variant, description.config.variant
        others = [what for what, old in began.fingerprints.items() if description.fingerprints.get(what) != old]
        settings = description.settings if others else moved(began.settings, description.settings)
        changed = differences(began.settings, settings, done=next(iter(saved_steps(self.checkpoints)), 0))
        if has_custom_lines(before) and before != now:
            other = f"another variant, {before!r}, now {now!r}: restore its lines"
        elif description.settings.lora_rank and not began.settings.lora_rank:
            raise RunError(
                f"--run: expected a new directory for the adapter, got {self.path}, a run without --lora-rank; name "
                "another one, and this run with --from to adapt its model"
            )
        elif changed:
            other = f"other settings ({'; '.join(changed)}): leave them out"
        elif others:
            other = f"another {others[0]}: give the same"
        else:
            return
        raise RunError(f"the run in {self.path} began with {other} to resume it, or name another directory")

    def save_parameters(self, params: Any, file: Path | None = None, *, step: int | None = None) -> None:
        """Write the parameters, trained until `step` if trained here, with checksums, to `parameters` or `file`."""
        leaves = {name: np.ascontiguousarray(array) for name, array in flatten(params).items()}
        self.save_leaves(leaves, file, step=step)

    def save_leaves(self, leaves: dict[str, np.ndarray], file: Path | None = None, *, step: int | None = None) -> None:
        """Write parameters as `save_parameters`, given as contiguous arrays by dotted name."""
        metadata = {"checksums": json.dumps(checksums(leaves))} | ({} if step is None else {"step": str(step)})
        write_atomically(file or self.parameters, lambda path: save_tensors(path, leaves, metadata))

    def save_results(self, results: dict[str, Any]) -> None:
        """Write the final figures on the held-out data."""
        write_atomically(self.results, lambda path: path.write_text(as_json(results, indent=1) + "\n"))
