"""Keep the blocks of a quantized GGUF file in memory: matrices in 4 or 8 bits, with scales of 32 numbers each.

Those of Q8_0, Q4_0 and Q4_1 are kept as they are, and numbers of other quantized types are rounded to Q8_0, as are all
where the matrices of a stack of layers, or of a product, have several types. Blocks have the matrices of attentions and
MLPs, W_e and W_u; those of other mixers and of experts are dequantized.
"""

import collections
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from algorithms import DTransformerParams, MHAttentionParams, MLPParams
from algorithms.lines import Attention
from algorithms.model.theta import stacks_of
from training.generation.quantized import QuantizedMatrix, QuantizedTable
from training.interchange import mapping
from training.interchange.gguf_file import FLOATS, GGUFFile, import_gguf
from training.interchange.gguf_models import GGUFTensors
from training.interchange.mapping import Entry
from training.runs.named_arrays import aligned, flatten, name_of

SIZE = 32
"""The number of entries in a block."""
ROUNDED = "Q8_0"
"""The type that others are rounded to."""
BYTES, HALF = ("entries", "u1", (SIZE // 2,)), "<f2"
BLOCKS = {
    ROUNDED: np.dtype([("scales", HALF), ("entries", "i1", (SIZE,))]),
    "Q4_0": np.dtype([("scales", HALF), BYTES]),
    "Q4_1": np.dtype([("scales", HALF), ("minima", HALF), BYTES]),
}
"""The layout of a block in the file, for the types that are kept."""
ZEROS = {BLOCKS["Q4_0"]: 8}


def kept(tensors: GGUFTensors, entries: Sequence[Entry], template: Any) -> Any:
    """Let the tensors of quantized matrices be read as blocks, and return the template with their shapes."""
    factors, found = _factors(template), mapping.lookup(tensors, entries, "")
    types: dict[str, set[str]] = collections.defaultdict(set)
    of_groups = [(_group(entry.leaves[0]), entry) for entry in entries if factors.issuperset(entry.leaves or {""})]
    for group, entry in of_groups:
        types[group] |= {tensors.type(name) for name in found[entry.name]}
    in_blocks: set[str] = set()
    for group, entry in of_groups:
        if types[group] and not types[group] & set(FLOATS):
            kind = next(iter(types[group])) if len(types[group]) == 1 and types[group] <= {*BLOCKS} else ROUNDED
            in_blocks |= set(entry.leaves)
            for name in found[entry.name]:
                tensors.keep(name, SIZE, functools.partial(_blocks, tensors.file, kind))

    def shape(path: Any, leaf: Any) -> Any:
        name, axes = name_of(path), list(leaf.shape)
        if name in in_blocks:
            axes[0 if name == "W_e" else -1] //= SIZE
        return jax.ShapeDtypeStruct(tuple(axes), leaf.dtype)

    return jax.tree_util.tree_map_with_path(shape, template)


def _factors(theta: Any) -> set[str]:
    """Return the names of the matrices that only products read, or a lookup."""
    if not isinstance(theta, DTransformerParams):
        return set()
    found = {"W_e", "W_u"}
    reads = all(getattr(type(line), "read", None) is Attention.read for line in theta.variant.attentions)
    stacks = stacks_of(theta.layers)
    for i, layer in enumerate(stacks):
        stack = "layers" if len(stacks) == 1 and type(theta.layers) is not tuple else f"layers.{i}"
        if reads and isinstance(layer.attention, MHAttentionParams):
            found |= {f"{stack}.attention.{name}" for name in ("heads.W_q", "heads.W_k", "heads.W_v", "W_o")}
        if isinstance(layer.mlp, MLPParams):
            found |= {f"{stack}.mlp.{name}" for name in ("W_mlp1", "W_mlp2", "W_gate")}
    return found & set(flatten(theta))


def _group(leaf: str) -> str:
    """Return what the factors of one product, or of one tensor in some files, have in common."""
    return re.sub(r"heads\.W_[qkv]$|mlp\.W_(gate|mlp1)$", "", leaf)


def _blocks(file: GGUFFile, kind: str, name: str) -> np.ndarray:
    """Return the blocks of each row of a tensor, of the given type."""
    gguf = import_gguf(file.path)
    if file.tensors[name].type == kind:
        stored = file.stored(name)
    else:
        stored = gguf.quants.quantize(file.read(name), gguf.GGMLQuantizationType[kind])
    return stored.view(BLOCKS[kind])


def loaded(leaves: dict[str, np.ndarray], dtype: np.dtype) -> dict[str, Any]:
    """Return the parameters of a model that computes in `dtype`, by name, from what was read; each array is given up
    when it is done.
    """
    found: dict[str, Any] = {}
    for name in list(leaves):
        leaf = leaves.pop(name)
        if leaf.dtype.names is None:
            found[name] = jax.device_put(leaf)
        elif name == "W_e":
            found[name] = QuantizedTable(_matrix(leaf.T, 0, dtype))
        else:
            found[name] = _matrix(leaf, int(name.startswith("layers.")), dtype)
    return found


def untied(theta: Any) -> Any:
    """Return the parameters with W_u, if it is tied, as the matrix of a W_e in blocks, in the same memory."""
    is_tied = isinstance(theta.W_e, QuantizedTable) and theta.W_u is None
    return theta._replace(W_u=theta.W_e.T) if is_tied else theta


def _matrix(blocks: np.ndarray, stacked: int, dtype: np.dtype) -> QuantizedMatrix:
    """Return the matrix of blocks ``[*stack, *rows, blocks]``, which has one axis of layers or none."""
    stack, rows = blocks.shape[:stacked], blocks.shape[stacked:-1]

    def transposed(part: str) -> jax.Array:
        a = blocks[part].reshape(*stack, int(np.prod(rows)), -1).swapaxes(-1, -2)
        whole = aligned(a.shape, a.dtype)
        whole[...] = a
        return jax.device_put(whole, may_alias=True)

    names = blocks.dtype.names or ()
    minima = transposed("minima") if "minima" in names else None
    return QuantizedMatrix(transposed("entries"), transposed("scales"), minima, rows, dtype, ZEROS.get(blocks.dtype, 0))
