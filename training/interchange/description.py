"""The fields of a config.json, with their defaults, and a list of what this library lacks."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.machinery.record import Record
from training.disk import parse_json, read_text, reason
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""The names of nonlinearities elsewhere, and ours."""
LARGEST = 1 << 31


class Model(NamedTuple):
    """A model, but for its parameters."""

    task: str  # the one of `training.tasks.TASKS` whose parameters it has
    config: Any  # sizes and variant
    labels: tuple[str, ...] = ()  # the classes, by number


class Fields:
    """The fields of a config.json.

    Attributes:
        path: the file, or that of GGUF that says the same.
        needs: unsupported features that the model needs.
    """

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        self.path = path
        self.needs: list[str] = []
        self._state = state

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default where it is missing or null."""
        value = self._state.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Return whether a field is there, be it null."""
        return name in self._state

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a size."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < LARGEST:
            raise InterchangeError(
                f"{self.path}: {name}: expected an integer of at least {least} and less than 2^31, got {value!r}"
            )
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise InterchangeError(f"{self.path}: {name}: expected a number of at least 0, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean field."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise InterchangeError(f"{self.path}: {name}: expected true or false, got {value!r}")
        return value

    def first(self, name: str) -> str:
        """Return the first of a list of texts, or nothing where there is none."""
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InterchangeError(f"{self.path}: {name}: expected a list of texts, got {value!r}")
        return value[0] if value else ""

    def table(self, name: str) -> dict[str, Any]:
        """Return an object, or an empty one where there is none."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise InterchangeError(f"{self.path}: {name}: expected an object, got {value!r}")
        return value

    def activation(self, name: str, default: str) -> Any:
        """Return a nonlinearity by our name."""
        value = self.get(name, default)
        found = ACTIVATIONS.get(str(value))
        if found is None:
            self.needs.append(f"the activation {value!r}")
        return found

    def require(self, name: str, expected: Any, what: str) -> None:
        """Note an unsupported feature if a field is present and not as expected."""
        if self.get(name, expected) != expected:
            self.needs.append(f"{what} ({name} = {self.get(name)!r})")

    def check(self) -> None:
        """Raise InterchangeError with a list of the unsupported features that the model needs, if there are any."""
        if self.needs:
            model = self.path if self.path.suffix == ".gguf" else self.path.parent
            raise InterchangeError(f"{model} needs what this library does not have: {', '.join(self.needs)}")


class Architecture(NamedTuple):
    """How models of one kind are described and stored elsewhere."""

    # from the fields of config.json and the names of the tensors to the model
    read_config: Callable[[Fields, Sequence[str]], Model]
    # from the model to the fields of config.json, and a list of what they cannot express
    write_config: Callable[[Model], tuple[dict[str, Any], list[str]]]
    # from the model and the fields of config.json to the tensors
    entries: Callable[[Model, dict[str, Any]], list[Entry]]
    prefix: str = ""  # that the tensors' names may have or lack
    ignored: tuple[str, ...] = ()  # patterns of tensors that are not parameters


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or raise InterchangeError if it cannot be read, or holds something else."""
    try:
        state = parse_json(read_text(path))
    except OSError as error:
        raise InterchangeError(f"cannot read {path}: {reason(error)}") from None
    except ValueError as error:
        raise InterchangeError(f"{path}: expected a JSON object, got something else: {error}") from None
    if not isinstance(state, dict):
        raise InterchangeError(f"{path}: expected a JSON object, got {type(state).__name__}")
    return state


def theirs(activation: str) -> str:
    """Return the name elsewhere of one of our nonlinearities."""
    return next(name for name, ours in ACTIVATIONS.items() if ours == activation)


def differences(variant: Record, expected: Record, path: str = "") -> list[str]:
    """Return the fields of a variant, or of its line at this path, that are not as a kind of checkpoint can say."""
    if type(variant) is not type(expected):
        return [f"{path or 'variant'} = {variant!r}"]
    found = []
    for field in dataclasses.fields(variant):
        ours, theirs = getattr(variant, field.name), getattr(expected, field.name)
        name = f"{path}.{field.name}" if path else field.name
        if isinstance(ours, Record) and isinstance(theirs, Record):
            found += differences(ours, theirs, name)
        elif ours != theirs:
            found.append(f"{name} = {ours!r}")
    return found


def plain_heads(config: Any) -> list[str]:
    """Return what a checkpoint whose heads have d_e/H rows, and their own keys, lacks for a model."""
    c = config
    found = unlike((c.d_attn * c.H, c.d_mid * c.H), (c.d_e, c.d_e), "heads of another size than d_e/H")
    return found + unlike(c.H_kv, c.H, f"keys that heads share (H_kv = {c.H_kv})")


def unlike(what: Any, expected: Any, message: str) -> list[str]:
    """Return the message, in a list, if a value is not the expected one."""
    return [] if what == expected else [message]
