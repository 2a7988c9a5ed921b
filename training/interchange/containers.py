"""Read and write tensors by name in the files of a directory: one safetensors file, several, or a PyTorch file.

Each tensor is read on request, so no second copy of a model is ever in memory.
"""

import importlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from training.disk import parse_json, read_text, require_file
from training.extras import unsafe
from training.interchange.errors import InterchangeError
from training.runs.named_arrays import save_tensors

SHARD_BYTES = 1 << 30
"""The most bytes of tensors per file written, and so in memory besides the parameters."""

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
BLOCKS, SCALES = "_blocks", "_scales"
MXFP4_BIAS = 127
"""The exponent that stands for 2⁰."""
_POSITIVE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([_POSITIVE, -_POSITIVE])
"""The number for each half of a byte."""


class Tensors:
    """The tensors of a directory, each read on request; `names` are in file order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._readers: dict[str, tuple[Callable[[], tuple[int, ...]], Callable[[], np.ndarray]]] = {}
        for file in _files(path):
            (self._open_safetensors if file.suffix == ".safetensors" else self._open_torch)(file)
        self.names = list(self._readers)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._readers[name][0]()

    def read(self, name: str) -> np.ndarray:
        """Return a tensor."""
        return self._readers[name][1]()

    def replace(
        self, names: Sequence[str], by: str, shape: tuple[int, ...], convert: Callable[..., np.ndarray]
    ) -> None:
        """Replace tensors by one of another name and shape, converted from them when it is read."""
        readers = [self._readers.pop(name)[1] for name in names]
        self._add(by, lambda: shape, lambda: convert(*(read() for read in readers)))
        self.names = list(self._readers)

    def rename(self, renamed: Callable[[str], str | None]) -> None:
        """Rename all tensors; those whose new name is None are left out."""
        readers, self._readers = self._readers, {}
        for name, reader in readers.items():
            if (other := renamed(name)) is not None:
                self._add(other, *reader)
        self.names = list(self._readers)

    def share_rows(self, names: Sequence[str], rows: Sequence[int]) -> None:
        """Divide the rows of several tensors, one below the other, among them anew: the first gets ``rows[0]``."""
        (_, *rest), reads = self.shape(names[0]), [self._readers[name][1] for name in names]
        for name, n, end in zip(names, rows, itertools.accumulate(rows), strict=True):
            self._readers[name] = (
                lambda n=n: (n, *rest),
                lambda n=n, end=end: np.concatenate([read() for read in reads])[end - n : end],
            )

    def _add(self, name: str, shape: Callable[[], tuple[int, ...]], read: Callable[[], np.ndarray]) -> None:
        # renames the parameters of layer norms in checkpoints of 2018
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in self._readers:
            raise InterchangeError(f"{self.path}: the tensor {name} is in two files; keep one of them")
        self._readers[name] = shape, read

    def _open_safetensors(self, file: Path) -> None:
        try:
            opened = safetensors.safe_open(require_file(file), framework="numpy")
            for name in sorted(opened.keys()):
                part = opened.get_slice(name)
                dtype = part.get_dtype()
                if dtype not in _DTYPES:
                    raise InterchangeError(f"{file}: {name} has the type {dtype}, expected one of {', '.join(_DTYPES)}")
                self._add(name, lambda p=part: tuple(p.get_shape()), lambda o=opened, n=name: o.get_tensor(n))
        except (safetensors.SafetensorError, OSError) as error:
            raise InterchangeError(f"{file} is damaged or not a safetensors file: {error}; download it again") from None

    def _open_torch(self, file: Path) -> None:
        for name, tensor in _state_dict(file).items():
            self._add(name, lambda t=tensor: tuple(t.shape), lambda t=tensor: _to_numpy(t))


_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL")  # the last four only in buffers


def _files(path: Path) -> list[Path]:
    for name in (SAFETENSORS, TORCH):
        if (path / name).is_file():
            return [path / name]
        index = path / f"{name}.index.json"
        if index.is_file():
            return _sharded(index)
    found = [p for suffix in ("*.safetensors", "*.bin", "*.pt", "*.pth") for p in sorted(path.glob(suffix))]
    if len(found) == 1:
        return found
    several = f", found {', '.join(p.name for p in found)}" if found else ""
    raise InterchangeError(
        f"{path} holds no weights: expected {SAFETENSORS} or {TORCH}, or an index of shards{several}"
    )


def _sharded(index: Path) -> list[Path]:
    try:
        names = sorted(set(parse_json(read_text(index))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InterchangeError(f"{index} cannot be read: {error!r}") from None
    files = [index.parent / str(name) for name in names]
    outside = [str(name) for name, file in zip(names, files, strict=True) if file.parent != index.parent]
    missing = [file.name for file in files if not file.is_file()]
    if outside or missing:
        raise InterchangeError(f"{index} names files that are not beside it: {', '.join(outside or missing)}")
    return files


def _state_dict(file: Path) -> Mapping[str, Any]:
    """Return the tensors of a PyTorch file, without executing code from it."""
    try:
        torch = importlib.import_module("torch")  # an extra, and slow to import
    except ModuleNotFoundError:
        raise InterchangeError(f"{file} is a PyTorch file, and reading it needs torch: pip install torch") from None
    if problem := unsafe("torch", least="2.6", because="which may execute code in such a file"):
        raise InterchangeError(f"{file} is a PyTorch file: {problem}")
    try:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files from before PyTorch 1.6 cannot be memory-mapped
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # from the zip file, the pickle, or the storage
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "weights" in reason.lower() and "only" in reason.lower():
            reason = "it contains code, or objects other than tensors"
        raise InterchangeError(f"{file} cannot be read as weights alone: {reason}") from None
    for wrapper in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise InterchangeError(f"{file}: expected tensors by name, got something else")
    return state


def _to_numpy(tensor: Any) -> np.ndarray:
    torch = importlib.import_module("torch")
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def dequantized(tensors: Tensors, quantization: Any) -> Tensors:
    """Return tensors, which are changed: those in MXFP4, the experts of gpt-oss's checkpoints, are dequantized,
    transposed, and have no suffix in their names. `quantization` is the field ``quantization_config``, None if nothing
    is quantized. Raises InterchangeError for another method, or blocks and scales that do not fit each other.

    A matrix W [rows, columns] is in two tensors: blocks of 32 numbers of a row, each a sign, two bits of exponent and
    one of mantissa, two numbers a byte, low one first; and for each block a power of two. As bfloat16 they are exact.

    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0.
    """
    if quantization is None:
        return tensors
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "mxfp4":
        raise InterchangeError(
            f"{tensors.path}: quantization_config: expected none, or the method mxfp4, got {str(method)[:60]!r}; get "
            "the model in float32, float16 or bfloat16, or as GGUF"
        )
    for name in [name for name in tensors.names if name.endswith(BLOCKS)]:
        whole = name.removesuffix(BLOCKS)
        shape, scales = tensors.shape(name), whole + SCALES
        if scales not in tensors.names or len(shape) != 4 or tensors.shape(scales) != shape[:-1] or shape[-1] != 16:
            found = list(tensors.shape(scales)) if scales in tensors.names else "none"
            raise InterchangeError(
                f"{tensors.path}: {name} and {scales}: expected [n, rows, blocks, 16] and [n, rows, blocks], got "
                f"{list(shape)} and {found}; download them again"
            )
        tensors.replace((name, scales), whole, (shape[0], 32 * shape[2], shape[1]), _dequantized)
    return tensors


def _dequantized(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the matrices of all experts, transposed, ``[n, columns, rows]``."""
    n, rows = blocks.shape[:2]
    out = np.empty((n, rows, 2 * blocks[0, 0].size), ml_dtypes.bfloat16)
    for i in range(n):  # one expert at a time is in memory as float32
        pairs = np.stack([VALUES[blocks[i] & 0x0F], VALUES[blocks[i] >> 4]], axis=-1)
        scaled = np.ldexp(pairs.reshape(*scales[i].shape, -1), scales[i].astype(np.int32)[..., None] - MXFP4_BIAS)
        out[i] = scaled.reshape(rows, -1)
    return out.swapaxes(1, 2)


def write(path: Path, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    """Write tensors, produced lazily, to one file, or to several of at most `SHARD_BYTES` each with an index."""
    shards: list[list[str]] = []
    held: dict[str, np.ndarray] = {}
    total = 0

    def flush() -> None:
        save_tensors(path / f"{len(shards)}.part", held, {"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, array in tensors:
        if held and sum(a.nbytes for a in held.values()) + array.nbytes > SHARD_BYTES:
            flush()
        held[name] = np.asarray(array, order="C")  # which, unlike `ascontiguousarray`, keeps scalars
        total += array.nbytes
    flush()
    if len(shards) == 1:
        (path / "0.part").rename(path / SAFETENSORS)
        return
    weight_map = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        (path / f"{i}.part").rename(path / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / f"{SAFETENSORS}.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
