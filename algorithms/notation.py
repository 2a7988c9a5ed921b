"""The paper's notation: the legend of every axis, the special tokens, and two helpers for reading the formulas.

Tokens are **columns** and weights are ``[d_out, d_in]``, so that ``W X + b 1ᵀ`` reads as printed. Token IDs start at 0.

=========  =============================================================================================
axis       meaning
=========  =============================================================================================
N_V        tokens of the vocabulary, the three special ones included (they are the last three)
l, l_x     tokens of the (primary) sequence; l_max is the longest one that the positions allow
l_z        tokens of the context sequence;  T tokens of the context of a single query
l_gen      tokens to generate
d_e        dimensions of an embedding, which is a column of the residual stream
d_x, d_z   rows of the primary and of the context matrix of an attention
d_attn     dimensions of a query and of a key
d_mid      dimensions of a value;  d_out dimensions of an attention's output
d_mlp      hidden units of a layer's MLP;  d_f rows after the final projection of Algorithm 9
H, L       heads;  layers (L_enc, L_dec of the encoder and of the decoder)
N_data     sequences of a data set;  N_epochs passes over it
*columns   the token axes: ``l`` for one sequence, ``*batch l`` where several stand side by side
=========  =============================================================================================

In a pytree of parameters the arrays of the heads are stacked on axis 0, and those of the layers in front of that.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

__all__ = ["bos_token", "eos_token", "mask_token", "as_columns", "accumulation_dtype"]


def mask_token(N_V: int) -> int:
    """ID of the token that hides another one in Algorithm 12 (the paper's ``N_V − 2``, counted from 0)."""
    return N_V - 3


def bos_token(N_V: int) -> int:
    """ID of the token that begins a sequence (the paper's ``N_V − 1``, counted from 0)."""
    return N_V - 2


def eos_token(N_V: int) -> int:
    """ID of the token that ends a sequence (the paper's ``N_V``, counted from 0)."""
    return N_V - 1


def as_columns(b: Float[Array, "*rows"], X: Float[Array, "*rows_and_columns"]) -> Float[Array, "*rows_and_ones"]:
    """``b 1ᵀ``: the vector ``b``, shaped so that it broadcasts over the columns of ``X``."""
    return b.reshape(b.shape + (1,) * (X.ndim - b.ndim))


def accumulation_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which sums over ``dtype`` are formed: float32 at least, float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)
