"""The fields of a config.json, read with checks and defaults, and what every kind of checkpoint declares."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.machinery.record import Record
from algorithms.model.variant import Variant
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
"""Our name for each name of a nonlinearity elsewhere."""
LARGEST = 1 << 31
MOST_LAYERS = 1 << 16
"""Lists over layers are only built for fewer layers than this."""


class Model(NamedTuple):
    """A model without its parameters."""

    task: str  # a key of `training.tasks.TASKS`
    config: Any  # sizes and variant
    labels: tuple[str, ...] = ()  # the names of the classes, in order


class Fields:
    """The fields of a config.json.

    Attributes:
        path: the config.json, or the GGUF file that the fields come from.
        needs: the unsupported features found so far.
    """

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        self.path = path
        self.needs: list[str] = []
        self._state = state

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default if it is missing or null."""
        value = self._state.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Return whether a field is present, even as null."""
        return name in self._state

    def integer(self, name: str, default: int | None = None, *, least: int = 1, limit: int = LARGEST) -> int:
        """Return an integer of at least `least` and less than `limit`, a power of two."""
        value = self.get(name, default)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value < limit
        power = limit.bit_length() - 1
        return self._checked(name, value, fits, f"an integer of at least {least} and less than 2^{power}")

    def _checked(self, name: str, value: Any, fits: bool, expected: str) -> Any:
        if not fits:
            raise InterchangeError(f"{self.path}: {name}: expected {expected}, got {value!r}")
        return value

    def sizes(self, names: Mapping[str, tuple[Any, ...]]) -> dict[str, int]:
        """Return sizes by our names; `names` maps each to its field's name and default, if it has one."""
        return {size: self.integer(*pair) for size, pair in names.items()}

    def number(self, name: str, default: float) -> float:
        """Return a nonnegative number."""
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = is_number and 0 <= value <= sys.float_info.max
        return float(self._checked(name, value, fits, "a number of at least 0"))

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean field."""
        value = self.get(name, default)
        return self._checked(name, value, isinstance(value, bool), "true or false")

    def first(self, name: str) -> str:
        """Return the first of a list of strings; "" if the list is empty or missing."""
        value = self.get(name, [])
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return next(iter(self._checked(name, value, fits, "a list of strings")), "")

    def table(self, name: str) -> dict[str, Any]:
        """Return an object; empty if missing."""
        value = self.get(name, {})
        return self._checked(name, value, isinstance(value, dict), "an object")

    def activation(self, name: str, default: str) -> Any:
        """Return our name of a nonlinearity; None, noted in `needs`, if it is unsupported."""
        value = self.get(name, default)
        found = ACTIVATIONS.get(str(value))
        if found is None:
            self.needs.append(f"the activation {value!r}")
        return found

    def require(self, name: str, expected: Any, what: str) -> None:
        """Note an unsupported feature if a field is present with a value other than the expected one."""
        if self.get(name, expected) != expected:
            self.needs.append(f"{what} ({name} = {self.get(name)!r})")

    def check(self) -> None:
        """Raise InterchangeError with the list of unsupported features, if there are any."""
        if self.needs:
            model = self.path if self.path.suffix == ".gguf" else self.path.parent
            raise InterchangeError(f"{model} needs what this library does not have: {', '.join(self.needs)}")


class Architecture(NamedTuple):
    """How another library describes and stores models of one kind."""

    # (the fields of config.json, the names of the tensors) → the model
    read_config: Callable[[Fields, Sequence[str]], Model]
    # the model → (the fields of config.json, what they cannot express)
    write_config: Callable[[Model], tuple[dict[str, Any], list[str]]]
    # (the model, the fields of config.json) → the tensors
    entries: Callable[[Model, dict[str, Any]], list[Entry]]
    prefix: str = ""  # an optional prefix of the tensors' names
    ignored: tuple[str, ...] = ()  # patterns of tensors that are not parameters


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises InterchangeError if it cannot be read, or holds something else."""
    try:
        state = parse_json(read_text(path))
    except OSError as error:
        raise InterchangeError(f"cannot read {path}: {reason(error)}") from None
    except ValueError as error:
        raise InterchangeError(f"{path}: expected a JSON object, got something else: {error}") from None
    if not isinstance(state, dict):
        raise InterchangeError(f"{path}: expected a JSON object, got {type(state).__name__}")
    return state


def size_fields(config: Any, names: Mapping[str, tuple[Any, ...]]) -> dict[str, int]:
    """Return the fields that `Fields.sizes` reads."""
    return {name: getattr(config, size) for size, (name, *_) in names.items()}


def theirs(activation: str) -> str:
    """Return the name that other libraries have for one of our nonlinearities."""
    return next((name for name, ours in ACTIVATIONS.items() if ours == activation), activation)


def differences(variant: Record, expected: Record, path: str = "") -> list[str]:
    """Return the fields of a variant, or of its line at this path, that differ from what a checkpoint expresses."""
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
    """Return what a model needs beyond heads of d_e/H rows that each have their own keys."""
    c = config
    found = unlike((c.d_attn * c.H, c.d_mid * c.H), (c.d_e, c.d_e), "heads of a different size than d_e/H")
    return found + unlike(c.H_kv, c.H, f"keys shared by heads (H_kv = {c.H_kv})")


def unexpressed(config: Any, variant: Variant) -> list[str]:
    """Return what a kind of checkpoint lacks for a model, if it has this variant and `plain_heads`."""
    return differences(config.variant, variant) + plain_heads(config)


def lost(config: Any, variant: Variant, state: dict[str, Any], read: Callable[[Fields], Model]) -> list[str]:
    """Return what a config.json cannot express of a model with this variant: what differs when it is read back."""
    fields = Fields(Path("config.json"), state)
    try:
        found = read(fields).config
    except ValueError as error:
        return [f"valid config.json for it: {error}"]
    variant = variant.but(unembedding=variant.unembedding.but(tied=config.tied))
    rows = unlike(config.d_mlp, found.d_mlp, f"MLP of {config.d_mlp} hidden units, only of {found.d_mlp}")
    return differences(variant, found.variant) + fields.needs + rows


def unlike(what: Any, expected: Any, message: str) -> list[str]:
    """Return the message, in a list, if a value is not the expected one."""
    return [] if what == expected else [message]
