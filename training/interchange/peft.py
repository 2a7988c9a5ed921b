"""Read and write low-rank adapters in PEFT's files, adapter_config.json and adapter_model.safetensors.

A checkpoint's matrix may stack several of ours, such as GPT-2's `c_attn`, also head by head, and PEFT gives it a single
A. Reading gives each of our matrices this A. Writing stacks their As if they differ, so the rank is then the sum of
theirs.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from training.disk import reason, require_file
from training.interchange.description import Fields, read_json
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry, Shape
from training.runs.named_arrays import flatten, name_of, save_tensors
from training.tasks.low_rank import matrices_of

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
WITHOUT_EFFECT = """
auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out
inference_mode layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_config megatron_core
peft_type peft_version qalora_group_size r rank_pattern revision target_modules task_type velora_config
alpha_pattern lora_alpha use_rslora bias init_lora_weights
"""
"""Fields of adapter_config.json that change no result, which the tensors say, too, or which `read` reads."""
INITIALIZATIONS = True, False, "gaussian", "eva", "orthogonal"
"""The values of init_lora_weights that leave the adapted matrices as they are."""
LACKING = {
    "use_dora": "DoRA",
    "lora_bias": "biases of adapters",
    "modules_to_save": "fully trained modules",
    "trainable_token_indices": "trained tokens",
    "alora_invocation_tokens": "an adapter that tokens activate",
    "layer_replication": "repeated layers",
    "target_parameters": "adapters of experts",
}
"""Unsupported features, by the field that requests them unless it is false or empty."""


class Adapter(NamedTuple):
    """An adapter that was read."""

    leaves: dict[str, np.ndarray]  # our arrays, by their dotted names
    rank: int  # of all matrices; lower ranks are padded with zeros
    alpha: float  # s times the rank
    matrices: tuple[str, ...]  # the names of the adapted matrices


def is_adapter(path: Path) -> bool:
    """Return whether a directory has PEFT's files."""
    return (path / CONFIG).is_file()


def _modules(entries: list[Entry]) -> dict[str, Entry]:
    """Return the matrices of the layers by the names of their modules in a checkpoint."""
    return {
        entry.name.removesuffix(".weight"): entry
        for entry in entries
        if len(entry.at) == 1 and not entry.of_experts
        if entry.leaves and entry.leaves[0].rpartition(".")[2].startswith("W_")
    }


def _names(module: str) -> tuple[str, str]:
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


def write(directory: Path, entries: list[Entry], adapter: Any, theta: Any, scale: float) -> None:
    """Write an adapter of θ, or of its shapes, to an existing directory; `entries` map the adapted checkpoint to θ."""
    leaves, shapes = {name: np.asarray(leaf) for name, leaf in flatten(adapter).items()}, _shapes(theta)
    modules = _modules(entries)
    joined = {
        module: _joined(entry, leaves, shapes)
        for module, entry in modules.items()
        if any(f"{leaf}.A" in leaves for leaf in entry.leaves)
    }
    ranks: dict[str, int] = {}
    for module, (A, _) in joined.items():
        ranks[_kind(module)] = max(len(A), ranks.get(_kind(module), 0))
    tensors: dict[str, np.ndarray] = {}
    for module, (A, B) in joined.items():  # all modules of a kind get one rank
        more = ranks[_kind(module)] - len(A)
        padded = np.pad(A, ((0, more), (0, 0))), np.pad(B, ((0, 0), (0, more)))
        tensors |= zip(_names(module), map(np.ascontiguousarray, padded), strict=True)
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
        "fan_in_fan_out": any(entry.transposed for entry in modules.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (directory / CONFIG).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})


def _shapes(theta: Any) -> dict[str, Shape]:
    """Return the shape of each of our matrices that can be adapted, by its dotted name."""
    return {name_of(path): W.shape for path, W in matrices_of(theta).items()}


def _of_rank(entry: Entry, shapes: Mapping[str, Shape], r: int) -> tuple[Entry, dict[str, Shape]]:
    """Return the correspondence of B's rows, which PEFT never transposes, and the shapes of ours, in place of W's."""
    return entry._replace(transposed=False), {name: (*shape[:-1], r) for name, shape in shapes.items()}


def _kind(module: str) -> str:
    """Return the last two words of a module's name, the same in all layers: both attentions and MLPs have a c_proj."""
    return ".".join(module.split(".")[-2:])


def _joined(
    entry: Entry, leaves: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of a checkpoint's matrix, from those of our matrices that are stacked in it, in one layer."""
    ours = {leaf: leaves[f"{leaf}.A"][entry.layer] for leaf in entry.leaves if f"{leaf}.A" in leaves}
    first = next(iter(ours.values()))
    shared = all(np.array_equal(A, first) for A in ours.values())
    r, n = len(first), 1 if shared else len(ours)
    rows, shapes_B = _of_rank(entry, shapes, n * r)
    parts = [np.zeros(shape, np.float32) for shape in rows.of_leaves(shapes_B)]
    for i, leaf in enumerate(ours):
        part, column = parts[entry.leaves.index(leaf)], 0 if shared else i * r
        part[..., column : column + r] = leaves[f"{leaf}.B"][entry.layer].reshape(*part.shape[:-1], r)
    return first if shared else np.concatenate([*ours.values()]), rows.join(parts, shapes_B)


def read(path: Path, entries: list[Entry], theta: Any) -> Adapter:
    """Read an adapter of θ, or of its shapes, from a directory; `entries` map the checkpoint that it adapts to θ.
    Raises InterchangeError if it needs an unsupported feature, is for another model, or is damaged.
    """
    fields = _check_config(path / CONFIG, read_json(path / CONFIG))
    tensors, modules, shapes = _tensors(path / WEIGHTS), _modules(entries), _shapes(theta)
    _check_tensors(path / WEIGHTS, tensors, modules, entries)
    changed = {m: entry for m, entry in modules.items() if not tensors.keys().isdisjoint(_names(m))}
    pairs = {module: _of_module(path, tensors, module, entry, shapes) for module, entry in changed.items()}
    rank = max(len(A) for A, _ in pairs.values())
    scales = {module: _scale(fields, module, len(A)) for module, (A, _) in pairs.items()}
    scale = next(iter(scales.values()))
    leaves: dict[str, np.ndarray] = {}
    for module, (A, B) in pairs.items():
        rows, shapes_B = _of_rank(modules[module], shapes, len(A))
        for leaf, part in zip(rows.leaves, rows.split(B * np.float32(scales[module] / scale), shapes_B), strict=True):
            L, *d_out, d_in = shapes[leaf]
            A_all = leaves.setdefault(f"{leaf}.A", np.zeros((L, rank, d_in), np.float32))
            B_all = leaves.setdefault(f"{leaf}.B", np.zeros((L, math.prod(d_out), rank), np.float32))
            A_all[rows.layer, : len(A)] = A
            B_all[rows.layer, :, : len(A)] = part.reshape(-1, len(A))
    adapted = {leaf.rpartition(".")[0].rpartition(".")[2] for leaf in leaves}
    names = dict.fromkeys(name.rpartition(".")[2] for name in shapes)
    return Adapter(leaves, rank, scale * rank, tuple(name for name in names if name in adapted))


def _check_config(path: Path, state: dict[str, Any]) -> Fields:
    """Return the fields of adapter_config.json. Raises InterchangeError if they ask for an unsupported feature."""
    fields = Fields(path, state)
    if state.get("peft_type") != "LORA":
        raise InterchangeError(f"{path}: peft_type: expected LORA, got {str(state.get('peft_type'))[:60]!r}")
    bias, start = fields.get("bias", "none"), fields.get("init_lora_weights", True)
    if bias != "none":
        fields.needs.append(f"trained biases (bias = {str(bias)[:60]})")
    if start not in INITIALIZATIONS:
        fields.needs.append(
            f"an initialization that changes the adapted matrices (init_lora_weights = {str(start)[:60]!r}; "
            "save_pretrained(…, path_initial_model_for_weight_conversion=…) of PEFT writes an adapter without it)"
        )
    for name in sorted({*state} - {*WITHOUT_EFFECT.split()}):
        if state[name]:
            fields.needs.append(f"{LACKING.get(name, 'an unknown feature')} ({name} = {str(state[name])[:60]})")
    fields.check()
    return fields


def _check_tensors(path: Path, tensors: Mapping[str, Any], modules: Mapping[str, Entry], entries: list[Entry]) -> None:
    """Raise InterchangeError if an adapter has other tensors than A and B of the model's `modules`."""
    unknown = sorted(tensors.keys() - {name for module in modules for name in _names(module)})
    others = {name.rpartition(".")[0] for entry in entries for name in (entry.name, *entry.aliases)}
    for name in unknown:
        module, _, part = name.removeprefix(PREFIX).partition(".lora_")
        if part and (module in others or module.rpartition(".")[0] in others):
            raise InterchangeError(
                f"{path} needs what this library does not have: lora_{part} of {module}; it has lora_A and lora_B of "
                "the matrices of attentions and of MLPs without experts"
            )
    if unknown or not tensors:
        found = f"{len(unknown)} others, such as {unknown[0]}" if unknown else "none"
        raise InterchangeError(
            f"{path}: expected lora_A and lora_B of the layers' matrices of the model that --from names, got "
            f"{found}; name the model that the adapter was trained on"
        )


def _tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load_file(require_file(path))
    except OSError as error:
        raise InterchangeError(f"{path}: {reason(error)}") from None
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise InterchangeError(f"{path} is damaged: {error}") from None


def _of_module(
    path: Path, tensors: Mapping[str, np.ndarray], module: str, entry: Entry, of_ours: Mapping[str, Shape]
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of a module that the adapter changes."""
    found = [tensors[name] for name in _names(module) if name in tensors]
    d_in, d_out = of_ours[entry.leaves[0]][-1], sum(math.prod(of_ours[leaf][1:-1]) for leaf in entry.leaves)
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
    """Return the factor of a module's B A: alpha/r, or alpha/√r if the adapter is rank-stabilized."""
    alpha, is_own = fields.number("lora_alpha", 8), False
    for pattern, value in fields.table("alpha_pattern").items():
        name = pattern.replace("\\", "")
        if not re.fullmatch(r"[\w.]+", name):  # an untrusted pattern might take forever to match
            raise InterchangeError(f"{fields.path}: alpha_pattern: expected names of modules, got {pattern[:60]!r}")
        if not is_own and f".{module}".endswith(f".{name}"):  # the first counts
            alpha, is_own = fields.inner({"alpha": value}).number("alpha", 0), True
    scale = alpha / (math.sqrt(r) if fields.flag("use_rslora", False) else r)
    if not 0 < scale < math.inf:
        raise InterchangeError(f"{fields.path}: lora_alpha: expected a positive number, got {alpha}")
    return scale
