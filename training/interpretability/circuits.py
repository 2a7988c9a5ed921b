"""Circuits of heads from the parameters alone: the tokens that they match, what they write, and how they compose."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Complex, Float

from algorithms import DTransformerParams
from algorithms.model.theta import every_layer
from algorithms.parameters import MHAttentionParams


def qk_circuits(W: MHAttentionParams) -> Float[Array, "L H d_z d_x"]:
    """``W_kᵀ W_q`` of each head: without biases, ``S = Zᵀ (W_kᵀ W_q) X``. Raises ValueError if S is not bilinear."""
    _check_bilinear(W)
    return jnp.einsum("lhad,lhae->lhde", _of_heads(W.heads.W_k, W), W.heads.W_q)


def _check_bilinear(W: MHAttentionParams) -> None:
    if W.gamma_q is not None:
        raise ValueError("W.gamma_q: expected None, got a norm of the queries, so S is not ZᵀM X for any M")


def ov_circuits(W: MHAttentionParams) -> Float[Array, "L H d_out d_z"]:
    """``W_o^h W_v`` of each head, which says what it moves: it writes ``(W_o^h W_v) Z A``."""
    return _output(W) @ _of_heads(W.heads.W_v, W)


def copying_eigenvalues(theta: DTransformerParams) -> Complex[Array, "L H d_mid"]:
    """The nonzero eigenvalues of ``W_u W_o^h W_v W_e`` of each head, from the small matrix ``W_v W_e W_u W_o^h``."""
    W = every_layer(theta.layers, theta.variant, lambda W: W.attention)
    between = theta.W_e @ theta.variant.unembedding.matrix(theta)
    return jnp.linalg.eigvals(_of_heads(W.heads.W_v, W) @ between @ _output(W))


def copying_scores(theta: DTransformerParams) -> Float[Array, "L H"]:
    """``Σλ/Σ|λ|`` of `copying_eigenvalues`: 1 if a head copies, −1 if it does the opposite (Elhage et al. 2021)."""
    eigenvalues = copying_eigenvalues(theta)
    return eigenvalues.real.sum(-1) / jnp.abs(eigenvalues).sum(-1)


def composition_scores(W: MHAttentionParams) -> dict[str, Float[Array, "L H L H"]]:
    """Q-, K- and V-composition of an earlier head OV' (the first two axes) with a later one, 0 if it is not earlier:
    ``‖QK OV'‖/‖QK‖‖OV'‖``, ``‖QKᵀ OV'‖/‖QK‖‖OV'‖`` and ``‖OV OV'‖/‖OV‖‖OV'‖`` in Frobenius norms (Elhage et al. 2021,
    "A mathematical framework for transformer circuits").
    """
    _check_bilinear(W)
    W_q, W_k, W_v, W_o = W.heads.W_q, _of_heads(W.heads.W_k, W), _of_heads(W.heads.W_v, W), _output(W)
    written = _gram(W_v.mT, W_o.mT)  # OV' OV'ᵀ
    read = {"Q": (W_k.mT, W_q), "K": (W_q.mT, W_k), "V": (W_o, W_v)}  # MᵀM of M = QK, QKᵀ and OV
    L = len(W_q)
    is_earlier = (jnp.arange(L)[:, None] < jnp.arange(L)[None])[:, None, :, None]
    return {name: jnp.where(is_earlier, _norms_of_products(_gram(*M), written), 0) for name, M in read.items()}


def _gram(left: Float[Array, "*axes m a"], right: Float[Array, "*axes a n"]) -> Float[Array, "*axes n n"]:
    """``MᵀM`` for M = left right, without forming M."""
    return right.mT @ (left.mT @ left) @ right


def _norms_of_products(
    read: Float[Array, "L H d d"], written: Float[Array, "L H d d"]
) -> Float[Array, "L_earlier H_earlier L H"]:
    """``‖M M'‖/‖M‖‖M'‖``, whose square is ``tr(MᵀM M'M'ᵀ)/tr(MᵀM) tr(M'M'ᵀ)``."""
    squares = jnp.tensordot(written, read, [(2, 3), (2, 3)])
    traces = jnp.tensordot(jnp.trace(written, axis1=2, axis2=3), jnp.trace(read, axis1=2, axis2=3), 0)
    return jnp.sqrt(jnp.maximum(squares, 0) / traces)


def _of_heads(W_kv: Float[Array, "L H_kv d d_z"], W: Any) -> Float[Array, "L H d d_z"]:
    """Repeat parameters that heads share, once for each head."""
    return jnp.repeat(W_kv, W.heads.W_q.shape[1] // W_kv.shape[1], axis=1)


def _output(W: MHAttentionParams) -> Float[Array, "L H d_out d_mid"]:
    """``W_o^h``, the columns of W_o of each head. Raises ValueError for parameters of a custom attention."""
    if not isinstance(W, MHAttentionParams):
        raise ValueError(
            f"W: expected MHAttentionParams, got {type(W).__name__} of a custom attention; give the "
            "MHAttentionParams in it, if its circuits are products of those"
        )
    L, H, d_mid = len(W.W_o), W.heads.W_q.shape[1], W.heads.W_v.shape[2]
    return jnp.moveaxis(W.W_o.reshape(L, -1, H, d_mid), 2, 1)
