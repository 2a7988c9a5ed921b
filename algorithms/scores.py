"""Lines 4 and 5 of Algorithm 4: the scores, their softmax, and which implementation of it serves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key, UInt32

from algorithms.batching import flat_mask, mask_axes
from algorithms.blockwise_attention import blockwise_attention
from algorithms.dense_attention import dense_attention
from algorithms.dropout import fold_in, kept, seed_of
from algorithms.library_attention import cudnn_attention, cudnn_refuses, pallas_attention, pallas_refuses
from algorithms.masks import Mask, StructuralMask
from algorithms.notation import accumulation_dtype
from algorithms.reverse_mode import reverse_only
from algorithms.unembedding import softmax

__all__ = ["IMPLEMENTATIONS", "attend", "attend_as_printed"]

IMPLEMENTATIONS = ("auto", "paper", "dense", "blockwise", "cudnn", "pallas")
"""Names of the implementations.

* ``"paper"``: the lines as printed, differentiable by JAX to any order and in forward mode;
* ``"dense"``: the backward pass derived by hand, keeping the softmax matrix;
* ``"blockwise"``: likewise, with an online softmax, keeping only the log-sum-exp: O(ℓ) memory;
* ``"cudnn"``: cuDNN's kernel, on an NVIDIA GPU;
* ``"pallas"``: the kernel shipped with JAX for TPUs;
* ``"auto"``: the fastest that is exact for the given input, by the table in ``automatic``.

With each of them but ``"paper"``, all other backward passes are those derived by hand too.
"""


def attend(
    Q: Float[Array, "... l_x"],
    K: Float[Array, "... l_z"],
    V: Float[Array, "... l_z"],
    mask: Mask,
    batch_axes: int,
    implementation: str,
    dropout: float,
    key: Key[Array, "*batch"] | None,
) -> Float[Array, "... l_x"]:
    """Lines 4 to the end of Algorithm 4, of every head and every sequence.

    Args:
        Q: queries, ``[*heads, d_attn, *batch, l_x]``; the heads, if any, are axis 0.
        K: keys, ``[*heads, d_attn, *batch, l_z]``.
        V: values, ``[*heads, d_mid, *batch, l_z]``.
        mask: one for all heads; one for all sequences, or one for each.
        batch_axes: how many batch axes there are.
        implementation: one of ``IMPLEMENTATIONS``.
        dropout: probability to drop an attention weight.
        key: one for each sequence; a head h draws with ``fold_in(key, h)``, a single one with ``key`` itself.
    """
    heads = Q.ndim - batch_axes == 3
    batch = Q.shape[1 + heads : -1]
    key = key if dropout else None
    seeds = None if key is None else seed_of(fold_in_each(key, Q.shape[0]) if heads else key[None])
    platform = jax.default_backend()
    if implementation == "paper":
        one = functools.partial(attend_as_printed, dropout=dropout)
        for _ in range(batch_axes):
            one = jax.vmap(one, in_axes=(1, 1, 1, mask_axes(mask), None if seeds is None else 0), out_axes=1)
        of_heads = jax.vmap(one, in_axes=(0, 0, 0, None, None if seeds is None else 0))
        return of_heads(Q, K, V, mask, seeds) if heads else one(Q, K, V, mask, None if seeds is None else seeds[0])
    H = Q.shape[0] if heads else 1
    Q, K, V = (a.reshape(H, a.shape[heads], -1, a.shape[-1]) for a in (Q, K, V))
    mask = flat_mask(mask, batch_axes)
    name = automatic(Q, K, V, mask, dropout, platform) if implementation == "auto" else implementation
    if name in LIBRARY_KERNELS:
        kernel, refuses = LIBRARY_KERNELS[name]
        reason = refuses(Q, K, V, mask, dropout, platform)
        if reason is not None:
            raise ValueError(f'implementation="{name}" can not serve: {reason}; give implementation="auto"')
        V_tilde = kernel(*reverse_only((Q, K, V)), mask)
    else:
        rule: Any = blockwise_attention if name == "blockwise" else dense_attention
        seeds = None if seeds is None else seeds.reshape(H, -1, 2)
        V_tilde = rule(*reverse_only((Q, K, V)), mask, seeds, dropout)
    return V_tilde.reshape(*(H,) * heads, -1, *batch, V_tilde.shape[-1])


LIBRARY_KERNELS = {"cudnn": (cudnn_attention, cudnn_refuses), "pallas": (pallas_attention, pallas_refuses)}
"""Name of a library's kernel → the kernel, and the function that says why it can not serve."""


def automatic(
    Q: Float[Array, "H d_attn B l_x"],
    K: Float[Array, "H d_attn B l_z"],
    V: Float[Array, "H d_mid B l_z"],
    mask: Mask,
    dropout: float,
    platform: str,
) -> str:
    """What ``"auto"`` stands for: the first row of this table that holds. ``docs/performance.md`` has the measurements.

    ========  ==============================================================  ===============
    platform  condition                                                       implementation
    ========  ==============================================================  ===============
    gpu       cuDNN takes the input                                           ``"cudnn"``
    tpu       the Pallas kernel takes the input                               ``"pallas"``
    any       at most 256 x 256 scores                                        ``"dense"``
    any       otherwise                                                       ``"blockwise"``
    ========  ==============================================================  ===============
    """
    for name, (_, refuses) in LIBRARY_KERNELS.items():
        if refuses(Q, K, V, mask, dropout, platform) is None:
            return name
    return "dense" if Q.shape[-1] * K.shape[-1] <= 256 * 256 else "blockwise"


def fold_in_each(key: Key[Array, "*batch"], n: int) -> Key[Array, "n *batch"]:
    """``fold_in(key, h)`` of every key of a batch, for h = 0 … n − 1."""
    return jnp.asarray(jax.vmap(lambda h: fold_in(key, h))(jnp.arange(n)))


def attend_as_printed(
    Q: Float[Array, "d_attn l_x"],
    K: Float[Array, "d_attn l_z"],
    V: Float[Array, "d_mid l_z"],
    mask: Mask,
    seed: UInt32[Array, "2"] | None,
    *,
    dropout: float,
) -> Float[Array, "d_mid l_x"]:
    """The lines as printed, differentiable by JAX to any order and in forward mode."""
    d_attn, l_x = Q.shape
    l_z = K.shape[1]
    Mask = mask.dense(l_z, l_x) if isinstance(mask, StructuralMask) else mask
    S = jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype))  # line 4
    S = jnp.where(Mask, S, -jnp.inf)  # line 5
    A = softmax(S / jnp.sqrt(d_attn).astype(S.dtype))  # return
    if seed is not None:
        A = jnp.where(kept(seed, dropout, jnp.arange(l_z), jnp.arange(l_x)), A / (1 - dropout), 0)
    V_tilde = (V @ A).astype(V.dtype)  # return
    return V_tilde
