"""Read GGUF files, the format of llama.cpp and Ollama: the metadata, and the tensors one by one.

Every length, count, type and offset in the header is checked against the file's size before it is used, so a truncated
or hostile file is rejected at once with a one-sentence error. The tensors stay in the memory-mapped file; the package
`gguf` (the extra `models`) dequantizes each on request.
"""

import collections
import importlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.extras import install
from training.interchange.description import MOST_LAYERS
from training.interchange.errors import InterchangeError

SUFFIX = ".gguf"
VERSIONS = (2, 3)
LARGEST_HEADER = 1 << 28
LARGEST_ARRAY = 1 << 22
LARGEST_DIMENSIONS = 4
FLOATS = ("F64", "F32", "F16", "BF16")
"""The types that are not quantized."""
SLAB = 1 << 22
"""Number of values dequantized at once; nothing else is in memory besides the result."""

_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)
_CODES = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "u1", "<u8", "<i8", "<f8")
_SCALARS = dict(zip(_NUMBERS, _CODES, strict=True))
_ALIGNMENT = "general.alignment"
_NEUTRAL = {
    "attention.causal": True,
    "rope.scaling.finetuned": True,
    "rope.scaling.type": "none",
    "rope.scaling.yarn_attn_factor": 1.0,
}
"""Values that have no effect, besides 0 and false."""


class TensorInfo(NamedTuple):
    """The shape, type and place of a tensor in the file."""

    shape: tuple[int, ...]  # in NumPy's order, rows first
    type: str  # `gguf`'s name of the number format
    row_bytes: int  # the size of one row
    start: int  # the offset of the first byte

    @property
    def rows(self) -> int:
        """The number of rows."""
        return math.prod(self.shape[:-1])

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.start + self.rows * self.row_bytes


class GGUFFile:
    """A GGUF file: its metadata by key (numbers, strings, and lists of either), and the tensors, in its order."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises InterchangeError if it is damaged or of an unsupported version."""
        self.path = path
        try:
            self._bytes = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            reason = error.strerror if isinstance(error, OSError) else "it is empty"
            raise InterchangeError(f"cannot read {path}: {reason}") from None
        header = _Header(path, self._bytes)
        self.metadata, infos = header.read()
        self.tensors = _placed(path, infos, header.at, self.metadata, len(self._bytes))

    @property
    def main_type(self) -> str:
        """The type of most numbers."""
        sizes: collections.Counter[str] = collections.Counter()
        for info in self.tensors.values():
            sizes[info.type] += math.prod(info.shape)
        return max(sizes, key=lambda form: sizes[form], default="F32")

    @property
    def is_quantized(self) -> bool:
        """Whether most numbers are quantized."""
        return self.main_type not in FLOATS

    @property
    def precision(self) -> str:
        """The dtype that keeps most numbers in the least space; bfloat16 if they are quantized."""
        return {"F64": "float32", "F32": "float32", "F16": "float16"}.get(self.main_type, "bfloat16")

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, dequantized to float32."""
        info, gguf = self.tensors[name], import_gguf(self.path)
        out, data = np.empty((info.rows, info.shape[-1]), np.float32), self.stored(name)
        step = max(1, SLAB // info.shape[-1])
        for i in range(0, info.rows, step):
            out[i : i + step] = gguf.dequantize(np.asarray(data[i : i + step]), gguf.GGMLQuantizationType[info.type])
        return out.reshape(info.shape)

    def stored(self, name: str) -> np.ndarray:
        """Return the bytes of each row of a tensor: the file, mapped anew, so that they do not stay in memory."""
        info = self.tensors[name]
        return np.memmap(self.path, np.uint8, "r", info.start, (info.rows, info.row_bytes))


class _Header:
    """Reads the header of a file, checking first that the file is long enough for each piece."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.at = path, 0
        self._data = memoryview(data[:LARGEST_HEADER])  # type: ignore[arg-type] # NumPy arrays are buffers
        self._is_all = len(data) <= LARGEST_HEADER

    def read(self) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, int]]]:
        """Return the metadata, and each tensor's shape, type number and offset, by name."""
        if self._take(4, "the magic number") != b"GGUF":
            raise _damaged(self.path, "expected a GGUF file, which begins with GGUF")
        version, n_tensors, n_fields = self._numbers("<IQQ", "the counts")
        if version not in VERSIONS:
            raise InterchangeError(
                f"{self.path}: version of GGUF: expected {VERSIONS[0]} or {VERSIONS[1]}, got "
                f"{version if version < 1 << 16 else 'a big-endian one'}; convert the model again with llama.cpp"
            )
        self._check_count(n_fields, 13, "the metadata")
        metadata: dict[str, Any] = {}
        for _ in range(n_fields):
            self._add(metadata, self._string("a key of the metadata"), self._value, "the metadata has the key")
        self._check_count(n_tensors, 32, "the tensors")
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(n_tensors):
            self._add(infos, self._string("the name of a tensor"), self._tensor, "the file has the tensor")
        return metadata, infos

    def _add(self, found: dict[str, Any], name: str, read: Callable[[str], Any], what: str) -> None:
        if name in found:
            raise _damaged(self.path, f"{what} {_shown(name)} twice")
        found[name] = read(name)

    def _take(self, n_bytes: int, what: str) -> memoryview:
        if n_bytes > len(self._data) - self.at:
            limit = "the file ends" if self._is_all else f"more than {LARGEST_HEADER >> 20} MiB of metadata"
            raise _damaged(self.path, f"{what} at byte {self.at} needs {n_bytes} bytes, but {limit}")
        piece = self._data[self.at : self.at + n_bytes]
        self.at += n_bytes
        return piece

    def _numbers(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form), what))

    def _check_count(self, count: int, least: int, what: str) -> None:
        """Raise InterchangeError if the file is too short for a number of entries of at least `least` bytes each."""
        if count * least > len(self._data) - self.at:
            raise _damaged(self.path, f"{what} at byte {self.at} should have {count} entries, which do not fit in it")

    def _string(self, what: str) -> str:
        (length,) = self._numbers("<Q", what)
        piece = self._take(length, what)
        try:
            return str(piece, "utf-8")
        except UnicodeDecodeError:
            raise _damaged(self.path, f"{what} at byte {self.at - length} is not UTF-8") from None

    def _value(self, key: str) -> Any:
        what = f"the value of {_shown(key)}"
        (kind,) = self._numbers("<I", what)
        if kind == _STRING:
            return self._string(what)
        if kind != _ARRAY:
            return self._array(kind, 1, what)[0]
        kind, count = self._numbers("<IQ", what)
        if kind != _STRING:
            return self._array(kind, count, what)
        if count > LARGEST_ARRAY:
            raise InterchangeError(f"{self.path}: {what} has {count} strings, expected at most {LARGEST_ARRAY}")
        self._check_count(count, 8, what)
        return [self._string(what) for _ in range(count)]

    def _array(self, kind: int, count: int, what: str) -> list[Any]:
        if kind not in _SCALARS:
            raise _damaged(self.path, f"{what} has the type {kind}, expected one that GGUF defines")
        dtype = np.dtype(_SCALARS[kind])
        self._check_count(count, dtype.itemsize, what)
        if count > LARGEST_ARRAY:
            raise InterchangeError(f"{self.path}: {what} has {count} numbers, expected at most {LARGEST_ARRAY}")
        array = np.frombuffer(self._take(count * dtype.itemsize, what), dtype)
        if kind == _BOOL:
            return [bool(value) for value in array]
        if kind == _FLOAT32:  # the shortest decimal that rounds to the value, as in the model's config.json
            return [float(str(value)) for value in array]
        return array.tolist()

    def _tensor(self, name: str) -> tuple[tuple[int, ...], int, int]:
        what = f"the tensor {_shown(name)}"
        (n_dimensions,) = self._numbers("<I", what)
        if not 1 <= n_dimensions <= LARGEST_DIMENSIONS:
            raise _damaged(self.path, f"{what} has {n_dimensions} dimensions, expected 1 to {LARGEST_DIMENSIONS}")
        shape = self._numbers(f"<{n_dimensions}Q", what)
        kind, offset = self._numbers("<IQ", what)
        return shape[::-1], kind, offset


def _placed(path: Path, infos: dict[str, Any], end: int, metadata: dict[str, Any], size: int) -> dict[str, TensorInfo]:
    """Return the place of each tensor. Raises InterchangeError if one is misaligned or not inside the file."""
    alignment = metadata.get(_ALIGNMENT, 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _damaged(path, f"{_ALIGNMENT}: expected a power of two, got {_shown(str(alignment))}")
    begin = -(-end // alignment) * alignment
    placed = {}
    for name, (shape, kind, offset) in infos.items():
        form, block, block_bytes = _block(path, name, kind)
        if min(shape) < 1 or shape[-1] % block or offset % alignment:
            raise _damaged(
                path,
                f"the tensor {_shown(name)}: expected rows of whole blocks of {block} at a multiple of {alignment}, "
                f"got the shape {list(shape)} at {offset}",
            )
        info = TensorInfo(shape, form, shape[-1] // block * block_bytes, begin + offset)
        if info.end > size:
            raise _damaged(path, f"the tensor {_shown(name)} ends at byte {info.end}, but the file has {size}")
        placed[name] = info
    return placed


def _block(path: Path, name: str, kind: int) -> tuple[str, int, int]:
    """Return the name of a type, and how many numbers and bytes its blocks have."""
    gguf = import_gguf(path)
    try:
        form = gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise InterchangeError(
            f"{path}: the tensor {_shown(name)} has the type {kind}, which the package gguf does not know; "
            "download the file again, or pip install -U gguf"
        ) from None
    if form.name not in ("F32", "F16") and not hasattr(gguf.quants, form.name):
        raise InterchangeError(
            f"{path}: the tensor {_shown(name)} has the type {form.name}, which the package gguf cannot dequantize; "
            "get the model in another type, such as Q8_0"
        )
    return form.name, *gguf.GGML_QUANT_SIZES[form]


def import_gguf(path: Path) -> Any:
    """Return the package gguf. Raises InterchangeError if it is not installed."""
    try:
        return importlib.import_module("gguf")  # an extra
    except ModuleNotFoundError:
        raise InterchangeError(f"{path} needs gguf: {install('models')}") from None


def _damaged(path: Path, problem: str) -> InterchangeError:
    return InterchangeError(f"{path}: {problem}; the file is truncated or damaged: download it again")


def _shown(name: str) -> str:
    """Return a name from a file, shortened and printable."""
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


GENERAL = ("diffusion.", "xielu.")
"""How keys on a model begin that do not begin with the architecture's name."""


def key_of(architecture: str, name: str) -> str:
    """Return a key on a model of an architecture."""
    return name if name.startswith(GENERAL) else f"{architecture}.{name}"


Keys = dict[str, tuple[str, Any]]
"""Fields of config.json, or products ``a*b``, by the keys of the metadata that have them; each with its default."""
REQUIRED = object()
"""In place of a default, of a key that a file must have."""


def keys(text: str) -> Keys:
    """Return the keys of a table, each with its field, and a default after "=" if a file may lack it."""
    words = [word.partition("=") for word in text.split()]
    return {
        key: (field, json.loads(default) if said else REQUIRED)
        for (key, *_), (field, said, default) in zip(words[::2], words[1::2], strict=True)
    }


class Metadata:
    """A file's metadata on its model; records which keys were read."""

    def __init__(self, file: Any, architecture: str) -> None:
        self.file, self.architecture = file, architecture
        self._asked: set[str] = set()

    def raw(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the model."""
        key = key_of(self.architecture, name)
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

    def layers(self) -> int:
        """Return the number of layers."""
        L = self.integer("block_count")
        if L >= MOST_LAYERS:
            raise self.wrong("block_count", f"fewer than {MOST_LAYERS} layers")
        return L

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(name, "a number above 0")
        return float(value)

    def fields(self, table: Keys, **defaults: float) -> dict[str, Any]:
        """Return fields of config.json by the keys that have them, of products the second one; `defaults` by field, of
        those without their own.
        """
        found: dict[str, Any] = {}
        for key, (name, default) in table.items():
            number, _, field = name.rpartition("*")
            read: Any = self.number if key.endswith(("epsilon", "capping", "scale")) else self.integer
            value = read(key, defaults.get(field)) if default is REQUIRED else self.get(key) or default
            if number and value % found[number]:
                of = next(of for of, (name, _) in table.items() if name == number)
                raise self.wrong(key, f"a multiple of {of} = {found[number]}")
            found[field] = value // found[number] if number else value
        return found

    def require(self, name: str, expected: Any) -> None:
        """Raise InterchangeError if a key has another value than expected."""
        if self.get(name, expected) != expected:
            raise self.wrong(name, str(expected))

    def wrong(self, name: str, expected: str) -> InterchangeError:
        """Return the error about a value."""
        key = key_of(self.architecture, name)
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
