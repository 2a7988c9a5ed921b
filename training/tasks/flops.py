"""The FLOPs of a model's matrix products."""

import math
from typing import Any

import jax

from algorithms.lines import MLP, Attention, Line
from algorithms.model.mlp import of_hidden_units


def attention_flops(c: Any, L: int, l_x: int, l_z: int) -> int:
    """Return the FLOPs of Algorithm 5 in L layers, for l_x tokens that attend to l_z."""
    lines = [c.variant.attention_of(l) for l in range(L)]
    products = sum(_product_flops(c, line, l_x, W_k=l_z, W_v=l_z, W_r=0) for line in lines)
    return products + score_flops(c, L, l_x, l_z)


def score_flops(c: Any, L: int, l_x: int, l_z: int) -> int:
    """Return the FLOPs of lines 4 to 7 of Algorithm 4 in L layers: those of all pairs of tokens."""
    parts = (part for l in range(L) for part, _ in c.variant.attention_of(l).parts())
    rows = ([part.d_head or c.d_attn, part.d_head or c.d_mid] for part in parts if isinstance(part, Attention))
    return 2 * c.H * l_x * l_z * sum(map(sum, rows))


def layer_flops(c: Any, L: int, l: int) -> int:
    """Return the FLOPs of L layers: self-attention, the MLPs, and the products of the layers' own inputs, if any."""
    d = getattr(c.variant.layer_end, "d", None) or 0  # rows of W_l, W_gate and W_oᵀ
    return attention_flops(c, L, l, l) + mlp_flops(c, L, l) + 3 * 2 * L * l * d * c.d_e


def mlp_flops(c: Any, L: int, l: int) -> int:
    """Return the FLOPs of the MLPs of L layers; of experts, those of the chosen."""
    return sum(_product_flops(c, c.variant.lines(number).mlp, l) for number in range(L))


def embedding_flops(c: Any, l: int) -> int:
    """Return the FLOPs of an encoder's embedding: of its projection, if it has one."""
    return 2 * c.d_in * c.d_e * l if c.variant.embedding.factored else 0


def _product_flops(c: Any, line: Line | None, l: int, **columns: int) -> int:
    """Return the FLOPs of a line's matrices (of experts, the chosen) with l columns, or as `columns` says."""
    if line is None:
        return 0
    shapes = of_hidden_units(line) if isinstance(line, MLP) else line.shapes()
    return sum(
        int(2 * math.prod(shape.of(c.sizes())) * line.share_read(path[0].name)) * columns.get(path[-1].name, l)
        for path, shape in jax.tree.leaves_with_path(shapes)
        if shape.role_of(path[-1].name) == "matrix"
    )
