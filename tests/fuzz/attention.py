"""Attention of random sizes, masks and dtypes: each implementation against the printed lines in float64."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import (
    BIDIRECTIONAL,
    UNIDIRECTIONAL,
    banded,
    blocks,
    documents,
    near,
    padding,
    prefix,
    scaled_dot_product_attention,
)
from algorithms.ops.attention import tiles
from tests.cases import small_blocks
from tests.fuzz.comparing import BOUNDS, assert_near, chance, normal, one_of

__all__ = ["check", "random_mask"]


def random_mask(rng: np.random.Generator, batch: tuple[int, ...], l_z: int, l_x: int) -> tuple[Any, np.ndarray]:
    """A mask of any kind or a conjunction, and the same as an array ``[*batch, l_z, l_x]``."""
    t_z, t_x = np.indices((l_z, l_x))
    mask, dense = BIDIRECTIONAL, np.ones((*batch, l_z, l_x), bool)
    of_each = batch if chance(rng, 0.5) else ()
    kinds = ["unidirectional", "band", "near", "padding", "prefix", "documents", "blocks", "array"]
    for kind in rng.permutation(kinds)[: rng.integers(4)]:
        if kind == "unidirectional":
            mask, dense = mask & UNIDIRECTIONAL, dense & (t_z <= t_x)
        elif kind == "band":
            width = int(rng.integers(1, max(l_z, l_x) + 3))
            mask, dense = mask & banded(width), dense & (t_z <= t_x) & (t_x - width < t_z)
        elif kind == "near":
            width = int(rng.integers(1, max(l_z, l_x) + 3))
            mask, dense = mask & near(width), dense & (abs(t_x - t_z) < width)
        elif kind == "padding":
            lengths = rng.integers(l_z + 1, size=of_each)
            mask = mask & padding(jnp.asarray(lengths, one_of(rng, "int32", "uint8", "int64")))
            dense = dense & (t_z < lengths[..., None, None])
        elif kind == "prefix":
            lengths = rng.integers(l_z + 1, size=of_each)
            mask = mask & prefix(jnp.asarray(lengths, one_of(rng, "int32", "uint8", "int64")))
            dense = dense & ((t_z <= t_x) | (t_z < lengths[..., None, None]))
        elif kind == "blocks" and l_z == l_x:
            numbers = rng.integers(4, size=(*of_each, l_z))
            mask = mask & blocks(jnp.asarray(numbers))
            dense = dense & (numbers[..., :, None] <= numbers[..., None, :])
        elif kind == "documents" and l_z == l_x:
            numbers = np.sort(rng.integers(4, size=(*of_each, l_z)), axis=-1)
            mask = mask & documents(jnp.asarray(numbers))
            dense = dense & (numbers[..., :, None] == numbers[..., None, :])
        elif kind == "array":
            array = rng.random((*of_each, l_z, l_x)) < rng.random()
            mask, dense = mask & jnp.asarray(array), dense & array
    return mask, np.broadcast_to(dense, (*batch, l_z, l_x))


def check(rng: np.random.Generator) -> None:
    """Value and gradients of one case."""
    batch = one_of(rng, (), (int(rng.integers(1, 4)),), (2, int(rng.integers(1, 3))))
    l_x, d_attn, d_mid = (int(n) for n in rng.integers(1, (14, 6, 6)))
    l_z = l_x if chance(rng, 0.5) else int(rng.integers(1, 14))
    dtype = one_of(rng, "float64", "float64", "float32", "bfloat16")
    mask, dense = random_mask(rng, batch, l_z, l_x)
    shared = () if chance(rng, 0.2) else batch  # keys and values without batch axes serve all
    scale = one_of(rng, 1.0, 1.0, 30.0) if dtype == "float64" else 1.0
    Q = normal(rng, d_attn, *batch, l_x, dtype=dtype, scale=scale)
    K, V = (normal(rng, d, *shared, l_z, dtype=dtype) for d in (d_attn, d_mid))
    G = normal(rng, d_mid, *batch, l_x)
    options: dict[str, Any] = {}
    if chance(rng, 0.3):
        keys = jax.random.key(int(rng.integers(1000)))
        options = {"dropout": float(rng.random() * 0.8), "key": jax.random.split(keys, batch) if batch else keys}

    def pulled(Q, K, V, mask, how):
        def weighted(Q, K, V):
            V_tilde = scaled_dot_product_attention(Q, K, V, mask, implementation=how, **options)
            return (V_tilde.astype(jnp.float64) * G).sum(), V_tilde

        return jax.value_and_grad(weighted, (0, 1, 2), has_aux=True)(Q, K, V)

    of_case = jax.jit(pulled, static_argnames="how")
    wide = [a.astype(jnp.float64) for a in (Q, K, V)]
    (_, out), gradients = of_case(*wide, jnp.asarray(dense), "paper")
    how = one_of(rng, "dense", "blockwise", "strips", "auto")
    what = f"{how}, {dtype}, Q {Q.shape}, K {K.shape}, {options.get('dropout', 0)}"
    with (
        small_blocks(int(rng.integers(1, 7)), LEAST=int(rng.integers(1, 7)), RANGES=int(rng.integers(1, 4))),
        mock.patch.object(tiles, "SMALL", one_of(rng, 4, 10**6)),
    ):
        jax.clear_caches()
        (_, actual), of_rule = of_case(Q, K, V, mask, how)
    bound = BOUNDS[dtype] * (1 if dtype != "float64" or scale == 1 else 1e3)
    assert_near(actual, out, bound, f"value of {what}")
    assert_near(of_rule, gradients, bound, f"gradients of {what}")
    nothing = ~dense.any(axis=-2)
    assert (np.asarray(actual, np.float64)[:, nothing] == 0).all(), f"{what}: a token that attends to nothing is not 0"
    assert (np.asarray(of_rule[0], np.float64)[:, nothing] == 0).all(), f"{what}: it has a gradient"
