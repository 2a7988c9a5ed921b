"""Adapters of low rank in PEFT's files, adapter_config.json and adapter_model.safetensors.

A matrix of a checkpoint that is several of ours, such as GPT-2's `c_attn`, has there one A for all of them: its A is
each of theirs, and the other way round theirs are one above another in it, so that its rank is the sum of theirs.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from training.disk import reason, require_file
from training.interchange.description import Fields, read_json
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry
from training.runs.named_arrays import flatten, save_tensors
from training.tasks.low_rank import matrices_of, sides

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
LACKING: dict[str, tuple[str, Any]] = {
    "use_dora": ("DoRA", False),
    "bias": ("biases that are trained", "none"),
    "modules_to_save": ("modules that are trained in full", None),
    "trainable_token_indices": ("tokens that are trained", None),
    "alora_invocation_tokens": ("an adapter that is invoked", None),
}
"""Fields of adapter_config.json that ask for more than is here, unless they have the second value: what it is."""


class Adapter(NamedTuple):
    """An adapter that was read."""

    leaves: dict[str, np.ndarray]  # our arrays, by their dotted names
    rank: int  # of all of them; those of a lower one are filled up with zeros
    alpha: float  # s times the rank
    matrices: tuple[str, ...]  # names of those that it is for


def is_adapter(path: Path) -> bool:
    """Return whether a directory has PEFT's files."""
    return (path / CONFIG).is_file()


def _modules(entries: list[Entry]) -> Iterator[tuple[str, Entry]]:
    """The matrices of the layers by the names of their modules in a checkpoint."""
    for entry in entries:
        if entry.layer is not None and entry.leaves and entry.leaves[0].rpartition(".")[2].startswith("W_"):
            yield entry.name.removesuffix(".weight"), entry


def _names(module: str) -> tuple[str, str]:
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


def write(directory: Path, entries: list[Entry], adapter: Any, theta: Any, scale: float) -> None:
    """Write an adapter of θ, or of its shapes, into a directory that exists; `entries` are those of the adapted
    checkpoint.
    """
    leaves, rows = {name: np.asarray(leaf) for name, leaf in flatten(adapter).items()}, _rows(theta)
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    for module, entry in _modules(entries):
        if any(f"{leaf}.A" in leaves for leaf in entry.leaves):
            A, B = _joined(entry, leaves, rows)
            tensors |= {name: np.ascontiguousarray(a) for name, a in zip(_names(module), (A, B), strict=True)}
            ranks[_kind(module)] = max(len(A), ranks.get(_kind(module), 0))
    for module, _ in _modules(entries):  # those of a kind have one rank
        if _names(module)[0] in tensors:
            A, B = (tensors[name] for name in _names(module))
            more = ranks[_kind(module)] - len(A)
            tensors |= zip(
                _names(module), (np.pad(A, ((0, more), (0, 0))), np.pad(B, ((0, 0), (0, more)))), strict=True
            )
    rank = min(ranks.values())
    larger = {kind: r for kind, r in ranks.items() if r != rank}
    state = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": scale * rank,
        "rank_pattern": {kind.replace(".", r"\."): r for kind, r in larger.items()},
        "alpha_pattern": {kind.replace(".", r"\."): scale * r for kind, r in larger.items()},
        "target_modules": [*ranks],
        "fan_in_fan_out": any(entry.transposed for _, entry in _modules(entries)),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (directory / CONFIG).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})


def _rows(theta: Any) -> dict[str, int]:
    """How many rows each of our matrices has in a layer, by its dotted name."""
    return {name: sides(W)[0] for name, W in _matrices(theta).items()}


def _matrices(theta: Any) -> dict[str, Any]:
    """Our matrices that can be adapted, by their dotted names."""
    return {".".join(key.name for key in path): W for path, W in matrices_of(theta).items()}


def _kind(module: str) -> str:
    """The last two words of a module's name, which all layers share: c_proj alone is of attentions and of MLPs."""
    return ".".join(module.split(".")[-2:])


def _joined(entry: Entry, leaves: Mapping[str, np.ndarray], rows: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a tensor, of those of our matrices that are one above another in it, in one layer."""
    parts = {
        leaf: (leaves[f"{leaf}.A"][entry.layer], leaves[f"{leaf}.B"][entry.layer])
        for leaf in entry.leaves
        if f"{leaf}.A" in leaves
    }
    first = next(A for A, _ in parts.values())
    shared = all(np.array_equal(A, first) for A, _ in parts.values())
    r = len(first)
    B_all = np.zeros((sum(rows[leaf] for leaf in entry.leaves), r if shared else r * len(parts)), np.float32)
    row = column = 0
    for leaf in entry.leaves:
        if leaf in parts:
            B_all[row : row + rows[leaf], column : column + r] = parts[leaf][1]
            column += 0 if shared else r
        row += rows[leaf]
    return first if shared else np.concatenate([A for A, _ in parts.values()]), B_all


def read(path: Path, entries: list[Entry], theta: Any) -> Adapter:
    """Read an adapter of θ, or of its shapes, from a directory; `entries` are those of the checkpoint that it is to
    adapt. Raises InterchangeError if it needs what is not here, is of another model, or is damaged.
    """
    fields = Fields(path / CONFIG, read_json(path / CONFIG))
    _check_config(fields)
    tensors, modules, rows = _tensors(path / WEIGHTS), dict(_modules(entries)), _rows(theta)
    known = {name for module in modules for name in _names(module)}
    unknown = sorted(tensors.keys() - known)
    if unknown or not tensors:
        found = f"{len(unknown)} others, such as {unknown[0]}" if unknown else "none"
        raise InterchangeError(
            f"{path / WEIGHTS}: expected lora_A and lora_B of the layers' matrices of the model that --from names, got "
            f"{found}; name the model that the adapter was trained on"
        )
    found = {module: _of_module(path, tensors, module, entry, theta, rows) for module, entry in modules.items()}
    pairs = {module: pair for module, pair in found.items() if pair is not None}
    rank = max(len(A) for A, _ in pairs.values())
    scales = {module: _scale(fields, module, len(A)) for module, (A, _) in pairs.items()}
    scale = next(iter(scales.values()))
    widths = {name: (W.shape[0], sides(W)[1]) for name, W in _matrices(theta).items()}
    leaves: dict[str, np.ndarray] = {}
    for module, (A, B) in pairs.items():
        entry, row = modules[module], 0
        for leaf in entry.leaves:
            L, d_in = widths[leaf]
            A_all = leaves.setdefault(f"{leaf}.A", np.zeros((L, rank, d_in), np.float32))
            B_all = leaves.setdefault(f"{leaf}.B", np.zeros((L, rows[leaf], rank), np.float32))
            A_all[entry.layer, : len(A)] = A
            B_all[entry.layer, :, : len(A)] = B[row : row + rows[leaf]] * np.float32(scales[module] / scale)
            row += rows[leaf]
    adapted = {leaf.rpartition(".")[0].rpartition(".")[2] for leaf in leaves}
    names = dict.fromkeys(name.rpartition(".")[2] for name in _matrices(theta))
    return Adapter(leaves, rank, scale * rank, tuple(name for name in names if name in adapted))


def _check_config(fields: Fields) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise InterchangeError(f"{fields.path}: peft_type: expected LORA, got {str(kind)[:60]!r}")
    for name, (what, nothing) in LACKING.items():
        if fields.get(name, nothing) not in (nothing, []):
            fields.needs.append(f"{what} ({name} = {str(fields.get(name))[:60]})")
    fields.check()


def _tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(require_file(path), framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise InterchangeError(f"{path}: {reason(error)}") from None
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise InterchangeError(f"{path} is damaged: {error}") from None


def _of_module(
    path: Path, tensors: Mapping[str, np.ndarray], module: str, entry: Entry, theta: Any, rows: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """A and B of a module, or None where the adapter leaves it as it is."""
    found = [tensors[name] for name in _names(module) if name in tensors]
    if not found:
        return None
    d_in = sides(_matrices(theta)[entry.leaves[0]])[1]
    d_out = sum(rows[leaf] for leaf in entry.leaves)
    shapes = [a.shape for a in found]
    r = shapes[0][0] if shapes[0] else 0
    if shapes != [(r, d_in), (d_out, r)] or not r:
        raise InterchangeError(
            f"{path / WEIGHTS}: {module}: expected lora_A [r, {d_in}] and lora_B [{d_out}, r], got "
            f"{' and '.join(str(list(shape)) for shape in shapes)}; name the model that the adapter was trained on"
        )
    A, B = (np.asarray(a, np.float32) for a in found)
    if not (np.isfinite(A).all() and np.isfinite(B).all()):
        raise InterchangeError(f"{path / WEIGHTS}: {module}: expected finite numbers, got others")
    return A, B


def _scale(fields: Fields, module: str, r: int) -> float:
    """The factor of B A of a module: alpha/r, or alpha/√r where the adapter is stabilized."""
    alpha = fields.number("lora_alpha", 8)
    for pattern, value in fields.table("alpha_pattern").items():
        name = pattern.replace("\\", "")
        if not re.fullmatch(r"[\w.]+", name):  # a pattern of a stranger is not tried, it might never end
            raise InterchangeError(f"{fields.path}: alpha_pattern: expected names of modules, got {pattern[:60]!r}")
        if module == name or module.endswith(f".{name}"):
            alpha = Fields(fields.path, {"alpha": value}).number("alpha", 0)
    scale = alpha / (math.sqrt(r) if fields.flag("use_rslora", False) else r)
    if not 0 < scale < math.inf:
        raise InterchangeError(f"{fields.path}: lora_alpha: expected a positive number, got {alpha}")
    return scale
