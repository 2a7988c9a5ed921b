"""What the metadata of a GGUF file say of its model, checked one by one."""

import math
from typing import Any

from training.interchange.errors import InterchangeError

_NEUTRAL = {
    "attention.causal": True,
    "rope.scaling.finetuned": True,
    "rope.scaling.type": "none",
    "rope.scaling.yarn_attn_factor": 1.0,
}
"""Values that have no effect, besides 0 and false."""


class Metadata:
    """A file's metadata on its model; records which keys were read."""

    def __init__(self, file: Any, architecture: str) -> None:
        self.file, self.architecture = file, architecture
        self._asked: set[str] = set()

    def raw(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the model."""
        key = f"{self.architecture}.{name}"
        self._asked.add(key)
        return self.file.metadata.get(key, default)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the model; for a list over all layers, the value that they share."""
        value = self.raw(name, default)
        if not isinstance(value, list):
            return value
        if len({repr(v) for v in value}) != 1:
            raise InterchangeError(
                f"{self.file.path} needs what this library does not have: layers of different sizes "
                f"({self.architecture}.{name})"
            )
        return value[0]

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(name, "an integer of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(name, "a number above 0")
        return float(value)

    def fields(self, names: dict[str, str], **defaults: float) -> dict[str, Any]:
        """Return fields of config.json by the keys that have them; `defaults` by field."""
        read: Any = {key: self.number if key.endswith(("epsilon", "capping")) else self.integer for key in names}
        return {field: read[key](key, defaults.get(field)) for key, field in names.items()}

    def wrong(self, name: str, expected: str) -> InterchangeError:
        """Return the error about a value."""
        key = f"{self.architecture}.{name}"
        value = self.file.metadata.get(key)
        return InterchangeError(f"{self.file.path}: {key}: expected {expected}, got {str(value)[:60]}")

    def has(self, tensor: str) -> bool:
        """Return whether the file has a tensor."""
        return tensor in self.file.tensors

    def check(self) -> None:
        """Raise InterchangeError if the file has keys on its model that were not read."""
        left = {
            key: value
            for key, value in self.file.metadata.items()
            if key.startswith(f"{self.architecture}.") and key not in self._asked and value
            if value != _NEUTRAL.get(key.removeprefix(f"{self.architecture}."))
        }
        if left:
            listed = ", ".join(f"{key} = {str(value)[:40]}" for key, value in left.items())
            raise InterchangeError(f"{self.file.path} needs what this library does not have: {listed}")
