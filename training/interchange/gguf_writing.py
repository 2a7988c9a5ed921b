"""Write a decoder as a GGUF file, which llama.cpp, Ollama and this library open: metadata, tokenizer and tensors.

The tables of `gguf_kinds` and `gguf_tokenizer` serve in both directions. What a file would not say is found by reading
its metadata back before anything is written, and so is what llama.cpp would not open. Matrices keep their type, or are
quantized; norms, biases and routers become float32, as llama.cpp expects. One tensor at a time is in memory.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.lines import Experts, Llama3, Mamba2, Parallel, Rotary
from training.interchange import mapping
from training.interchange.description import CYCLE, Architecture, Fields, Model, differences
from training.interchange.errors import InterchangeError
from training.interchange.gguf_fields import ROPE_FACTORS, factors_of, of_heads, turned_pairs
from training.interchange.gguf_file import TensorInfo, import_gguf, key_of
from training.interchange.gguf_kinds import FLOAT32, KINDS, LISTED, part_of
from training.interchange.gguf_models import TIED, renamed, state_of

ARCHITECTURE = "general.architecture"
EXACT = ("ffn_gate_inp", "position_embd")
"""The matrices that are never quantized; those of routers are in float32."""
QUANTIZED = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""The types that matrices can be rounded to."""
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""GGUF's names of the types of matrices."""
OF_TYPE = {kind: name for name, own in KINDS.items() for kind in own.types or (name,)}
"""The architecture in GGUF of each kind of checkpoint that has one."""


class Draft(NamedTuple):
    """The metadata of a file to write; reads like a `GGUFFile`."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    factors: Any  # the divisors of the rotary frequencies, or None

    def read(self, name: str) -> np.ndarray:
        """Return the divisors, the only tensor that the fields depend on."""
        return {ROPE_FACTORS: self.factors}[name]


def draft(
    path: Path, model: Model, state: dict[str, Any], leaves: Mapping[str, Any], quantize: str | None = None
) -> Draft:
    """Return a file's metadata on its model, and its tensors' shapes and types; `quantize` is one of `QUANTIZED`."""
    state, architecture = renamed(state, back=True), OF_TYPE[state["model_type"]]
    architecture += "_moe" * (f"{architecture}_moe" in KINDS and "n_routed_experts" in state)
    kind, shapes = KINDS[architecture], {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    rotary = state.get("rope_parameters", {})
    found: dict[str, Any] = {}
    for key, (names, _) in kind.names.items():
        values: Any = [state.get(name) for name in names.split("*")]
        found |= {} if None in values else {key: math.prod(values) if len(values) > 1 else values[0]}
    found |= {"vocab_size": model.config.N_V} | of_heads(state) | kind.fixed | kind.derived(state)
    found |= _scaling(rotary.get("full_attention", rotary)) if rotary else {}
    metadata: dict[str, Any] = {ARCHITECTURE: architecture, "general.name": path.stem}
    entries = kind.written(model)
    for name, number in mapping.write([entry for entry in entries if LISTED in entry.name], leaves):
        found.setdefault(name.split(".", 2)[-1], []).append(float(number.item()))
    metadata |= {key_of(architecture, key): value for key, value in found.items()}
    factors = _factors(model)
    tensors = {} if factors is None else {ROPE_FACTORS: TensorInfo(factors.shape, "F32", 4 * factors.size, 0)}
    for entry in [entry for entry in entries if LISTED not in entry.name]:
        name, shape = entry.name, kind.shape(entry.name, entry.shape(shapes), state, write=True)
        is_exact = len(shape) == 1 or name.endswith(".bias") or EXACT[0] in name or part_of(name) in FLOAT32
        form = "F32" if is_exact else _type(leaves[entry.leaves[0]].dtype)
        if quantize and not is_exact and EXACT[1] not in name:
            form = quantize
        block, n_bytes = import_gguf(path).GGML_QUANT_SIZES[import_gguf(path).GGMLQuantizationType[form]]
        if shape[-1] % block:
            raise InterchangeError(
                f"--quantize: expected rows of whole blocks of {block}, as {form} has them, got {shape[-1]} numbers in "
                f"the rows of {name}; leave it out"
            )
        tensors[name] = TensorInfo(shape, form, shape[-1] // block * n_bytes, 0)
    metadata |= {f"{architecture}.{CYCLE}": state[CYCLE]} if CYCLE in state else {}
    if kind.repeats and model.config.tied:
        metadata[f"{architecture}.{TIED}"] = True
    return Draft(path, metadata, tensors, factors)


def folded(model: Model, leaves: dict[str, Any]) -> tuple[Model, dict[str, Any]]:
    """Return Falcon-H1 without factors, which are in its matrices as in llama.cpp, with the same logits; W_u is then a
    matrix of its own. Other models are unchanged.
    """
    variant, d = model.config.variant, model.config.d_attn
    line, mlp, unembedding = variant.attention, variant.mlp, variant.unembedding
    if not isinstance(line, Parallel) or not isinstance(line.recurrence, Mamba2):
        return model, leaves
    attention, ours = line.attention, "layers.attention.{}".format
    mamba: Any = line.recurrence
    keys = 1.0 if attention.scale is None else attention.scale * math.sqrt(d)
    factors = {"W_e": variant.embedding.factor, "W_u": unembedding.factor, ours("recurrence.W_out"): line.factors[1]}
    factors |= {ours(f"recurrence.W_{a}"): factor for a, factor in zip("qkvaz", mamba.factors, strict=True)}
    for letter in "Wb":
        factors |= {ours(f"attention.heads.{letter}_k"): keys, ours(f"attention.{letter}_o"): line.factors[0]}
        factors[f"layers.mlp.{letter}_gate"] = mlp.factors[0]
    factors["layers.mlp.W_mlp2"] = mlp.factors[1]
    leaves = {"W_u": np.asarray(leaves["W_e"]).T, **leaves}
    leaves = {name: np.asarray(a) * np.asarray(factors.get(name, 1), a.dtype) for name, a in leaves.items()}
    variant = variant.but(
        embedding=variant.embedding.but(factor=1.0),
        attention=line.but(
            attention=attention.but(scale=None), recurrence=mamba.but(factors=(1.0,) * 5), factors=(1.0, 1.0)
        ),
        mlp=mlp.but(factors=(1.0, 1.0)),
        unembedding=unembedding.but(factor=1.0, tied=False),
    )
    return model._replace(config=dataclasses.replace(model.config, variant=variant, tied=False)), leaves


def _scaling(rotary: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata on the frequencies of rotary positions."""
    found, scaling = {"rope.freq_base": rotary["rope_theta"]}, rotary["rope_type"]
    if scaling in ("linear", "yarn"):
        found |= {"rope.scaling.type": scaling, "rope.scaling.factor": float(rotary["factor"])}
    if scaling == "yarn":
        found["rope.scaling.original_context_length"] = rotary["original_max_position_embeddings"]
        found |= {f"rope.scaling.yarn_{name}": float(rotary[name]) for name in ("beta_fast", "beta_slow")}
    return found


def _factors(model: Model) -> np.ndarray | None:
    """Return the divisor of each rotary frequency, which is how GGUF has Llama 3's scaling, and Gemma 4's."""
    lines = [line for line in model.config.variant.attentions if line.positions is not None]
    for line in lines:
        if getattr(line.positions, "of_all", False):
            d = line.d_head or model.config.d_attn
            return turned_pairs(int(line.positions.share * d) // 2, d)
    positions = lines[0].positions if lines else None
    if not (isinstance(positions, Rotary) and isinstance(positions.scaling, Llama3)):
        return None
    return factors_of(positions, positions.rows(model.config.d_attn)).astype(np.float32)


def _type(dtype: Any) -> str:
    if str(dtype) not in TYPES:
        raise InterchangeError(f"GGUF has matrices in {', '.join(TYPES)}, got {dtype}; give --dtype float32")
    return TYPES[str(dtype)]


def lost(file: Draft, model: Model, architecture: Architecture) -> list[str]:
    """Return what a file would not say of its model: what differs when its metadata are read back."""
    try:
        fields = Fields(file.path, renamed(state_of(file, file.metadata[ARCHITECTURE])))
        found = architecture.read_config(fields, list(file.tensors)).config
    except ValueError as error:
        return [f"metadata for it: {error}"]
    ours, kind = model.config, KINDS[file.metadata[ARCHITECTURE]]
    if kind.ties and not ours.tied:
        return ["W_u in llama.cpp, which takes W_eᵀ"]
    if not kind.shares and ours.H_kv != ours.H:
        return [f"keys shared by heads in llama.cpp (H_kv = {ours.H_kv})"]
    variant = architecture.of_layers(ours.variant, ours)
    variant = variant.but(unembedding=variant.unembedding.but(tied=ours.tied))
    if isinstance(variant.mlp, Experts):
        variant = variant.but(mlp=dataclasses.replace(variant.mlp, balance=0.0))  # which only training reads
    sizes = [
        f"{field.name} = {getattr(ours, field.name)}"
        for field in dataclasses.fields(ours)
        if field.name != "variant" and getattr(ours, field.name) != getattr(found, field.name)
    ]
    return differences(variant, architecture.of_layers(found.variant, ours)) + fields.needs + sizes


def write(path: Path, file: Draft, state: dict[str, Any], model: Model, leaves: Mapping[str, Any]) -> None:
    """Write a drafted file."""
    gguf, kind, state = import_gguf(path), KINDS[file.metadata[ARCHITECTURE]], renamed(state, back=True)
    writer = gguf.GGUFWriter(str(path), file.metadata[ARCHITECTURE])
    for key, value in file.metadata.items():
        if key == ARCHITECTURE:  # which the writer has
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, info in file.tensors.items():
        form = gguf.GGMLQuantizationType[info.type]
        writer.add_tensor_info(name, info.shape, np.dtype(np.float32), info.rows * info.row_bytes, form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if file.factors is not None:
        writer.write_tensor_data(file.factors)
    entries = [entry for entry in kind.written(model) if entry.name in file.tensors]
    for name, array in mapping.write(entries, leaves):
        converted = np.ascontiguousarray(kind.convert(name, array, state, write=True))
        form = file.tensors[name].type
        if form in QUANTIZED:
            converted = gguf.quants.quantize(converted.astype(np.float32), gguf.GGMLQuantizationType[form])
        writer.write_tensor_data(converted.astype(np.float32) if form == "F32" else converted)
    writer.close()
