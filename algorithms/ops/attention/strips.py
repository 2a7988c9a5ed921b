"""Attention with its backward pass derived by hand, a strip of the scores at a time: the rule for CPUs, in O(ℓ) memory.

A strip has the scores of a few queries with all keys that the mask lets them attend to, so that a softmax needs no
rescaling. Here a token is a row, Sᵀ = QᵀK, which makes sums over keys sums of neighbors; what has to be transposed for
that is transposed once. The backward pass computes each strip of the softmax again from its queries' log-sum-exp.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.lax import dynamic_slice_in_dim, dynamic_update_slice_in_dim
from jaxtyping import Bool, Float, UInt32

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.hand_derived import hand_derived
from algorithms.masks import Mask, StructuralMask
from algorithms.ops.attention.blockwise import BLOCK
from algorithms.ops.attention.distances import scores_by_distance, scores_by_distance_backward
from algorithms.ops.attention.tiles import SMALL, ByDistance, for_groups_of_tiles, in_turn, sum_over_groups
from algorithms.ops.dropout import keep_mask
from algorithms.ops.softmax import capped, capped_derivative

T = TypeVar("T")
LEAST, LARGEST = 128, 256
"""Queries of the smallest and of the largest strip: small ones leave out more of what a mask rules out."""

RANGES = 8
"""How many different ranges of keys there are at most: each is compiled for itself."""

SCORES = 2**17
"""Scores that are computed at once, of several tiles where these are small: they stay in a core's cache."""


def in_strips(l_x: int, l_z: int, mask: Mask) -> bool:
    """Whether strips are the fastest rule on a CPU.

    Small tiles run side by side. Long sequences have strips too long for a core's cache, and blocks that padding rules
    out are skipped by ``"blockwise"``.
    """
    padded = isinstance(mask, StructuralMask) and mask.length is not None
    return l_x * l_z > SMALL and max(l_x, l_z) <= (BLOCK if padded else LARGEST * RANGES)


class _Residuals(NamedTuple):
    Q: Float[Array, "H d_attn B l_x"]
    K: Float[Array, "H_kv d_attn B l_z"]
    V: Float[Array, "H_kv d_mid B l_z"]
    V_tilde: Float[Array, "H d_mid B l_x"]
    log_sum_exp: Float[Array, "H 1 B l_x"]
    mask: Mask
    seeds: UInt32[Array, "H B 2"] | None
    by_distance: ByDistance


def _columns(a: Float[Array, "H d B l"]) -> Float[Array, "H B d l"]:
    """The columns of each tile, in memory: XLA would otherwise gather them again for every strip."""
    return jax.lax.optimization_barrier(a.swapaxes(1, 2))


def _rows(a: Float[Array, "H d B l"]) -> Float[Array, "H B l d"]:
    """Tokens as rows. Two simple transpositions are faster than one of three axes."""
    return jax.lax.optimization_barrier(_columns(a).swapaxes(2, 3))


def _from_rows(a: Float[Array, "H B l d"]) -> Float[Array, "H d B l"]:
    return jax.lax.optimization_barrier(a.swapaxes(2, 3)).swapaxes(1, 2)


def _of_distances(by_distance: ByDistance, scale: float) -> tuple[Array, ...]:
    """U, scaled as Q is, and P as matrices of tiles."""
    return (_columns(by_distance[0] * scale), by_distance[1][:, None]) if by_distance else ()


def _forward(Q, K, V, mask, seeds, dropout, cap, by_distance=()):
    scale = jnp.asarray(Q.shape[1] ** -0.5, Q.dtype)
    of_tile = functools.partial(_forward_of_tile, dropout=dropout, cap=cap)
    matrices = _rows(Q * scale), _columns(K), _rows(V), *_of_distances(by_distance, Q.shape[1] ** -0.5)
    V_tilde, log_sum_exp = for_groups_of_tiles(of_tile, matrices, mask, seeds, _at_once(Q, K))
    V_tilde, log_sum_exp = _from_rows(V_tilde), _from_rows(log_sum_exp)
    V_tilde, log_sum_exp = checkpoint_name(V_tilde, "V_tilde"), checkpoint_name(log_sum_exp, "log_sum_exp")
    return V_tilde, _Residuals(Q, K, V, V_tilde, log_sum_exp, mask, seeds, by_distance)


def _backward(dropout, cap, residuals: _Residuals, E):
    Q, K, V, V_tilde, log_sum_exp, mask, seeds, by_distance = residuals
    scale = jnp.asarray(Q.shape[1] ** -0.5, Q.dtype)
    Q_scaled = Q * scale
    of_keys = _columns(K), _columns(Q_scaled), _rows(K)
    of_values = _columns(V), _rows(E), _columns(E), _rows(V_tilde), _rows(log_sum_exp)
    of_tile = functools.partial(_backward_of_tile, dropout=dropout, cap=cap)
    matrices = _rows(Q_scaled), *of_keys, *of_values, *_of_distances(by_distance, Q.shape[1] ** -0.5)
    dQ, dK, dV, *by_U_P = for_groups_of_tiles(of_tile, matrices, mask, seeds, _at_once(Q, K))
    dQ = _from_rows((dQ * scale.astype(dQ.dtype)).astype(Q.dtype))
    dK, dV = dK.swapaxes(1, 2).astype(K.dtype), dV.swapaxes(1, 2).astype(V.dtype)
    if by_U_P:
        U, P = by_distance
        dU, dP = by_U_P[0].swapaxes(1, 2) * Q.shape[1] ** -0.5, by_U_P[1].sum(axis=1)
        by_U_P = dU.astype(U.dtype), dP.astype(P.dtype)
    return dQ, sum_over_groups(dK, len(K)), sum_over_groups(dV, len(V)), None, None, tuple(by_U_P)


def _at_once(Q: Array, K: Array) -> int:
    """How many tiles are computed side by side."""
    return max(1, SCORES // (_rows_of_strips(Q.shape[-1]) * K.shape[-1]))


def _rows_of_strips(l_x: int) -> int:
    return min(max(LEAST, -(-l_x // RANGES)), LARGEST)


def _strips_attention(
    Q: Float[Array, "H d_attn B l_x"],
    K: Float[Array, "H_kv d_attn B l_z"],
    V: Float[Array, "H_kv d_mid B l_z"],
    mask: Mask,
    seeds: UInt32[Array, "H B 2"] | None,
    dropout: float,
    cap: float | None,
    by_distance: ByDistance = (),
) -> Float[Array, "H d_mid B l_x"]:
    """``V · softmax(KᵀQ/√d_attn)`` of every head and sequence, with −∞ where the mask is False.

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """
    return _forward(Q, K, V, mask, seeds, dropout, cap, by_distance)[0]


strips_attention = hand_derived(_strips_attention, _forward, _backward, static=(5, 6))


class _Strip:
    """The scores of the n queries from ``first`` on with the keys of a range."""

    def __init__(self, first: int | Array, n: int, keys: slice, mask: Mask, seed: Array | None, dropout: float) -> None:
        self.first, self.n, self.keys = first, n, keys
        self.t_x, self.t_z = first + jnp.arange(n), jnp.arange(keys.start, keys.stop)
        self.mask, self.seed, self.dropout = mask, seed, dropout

    def queries(self, a: Float[Array, "l_x d"]) -> Float[Array, "n d"]:
        """The rows of its queries."""
        return dynamic_slice_in_dim(a, self.first, self.n)

    def of_distances(self, by_distance: list[Array], l_x: int) -> tuple[Array, ...]:
        """U and P of the strip, if there are any."""
        if not by_distance:
            return ()
        U, P = by_distance
        U_x = dynamic_slice_in_dim(U, self.first, self.n, 1)
        return U_x, dynamic_slice_in_dim(P, self.first_distance(l_x), len(self.t_z) + self.n, 1)

    def first_distance(self, l_x: int) -> int | Array:
        """The column of P from which those of the strip stand."""
        return self.keys.start + l_x - self.first - self.n

    def permitted(self) -> Bool[Array, "n z"]:
        """The strip of the mask, transposed."""
        if isinstance(self.mask, StructuralMask):
            return self.mask.permits(self.t_z[None, :], self.t_x[:, None])
        return dynamic_slice_in_dim(self.mask[self.keys], self.first, self.n, 1).T

    def keep_scale(self) -> Float[Array, "n z"] | int:
        """D, transposed: 0 where an attention weight is dropped, 1/(1 − rate) where it is kept."""
        if self.seed is None:
            return 1
        return jnp.where(keep_mask(self.seed[::-1], self.dropout, self.t_x, self.t_z), 1 / (1 - self.dropout), 0)


def _for_each_strip(
    step: Callable[[_Strip, T], T], state: T, l_z: int, l_x: int, mask: Mask, seed: Array | None, dropout: float
) -> T:
    """``state`` after ``step(strip, state)`` for every strip; consecutive ones with one range of keys are a loop."""
    rows = _rows_of_strips(l_x)
    whole, rest = divmod(l_x, rows)
    at_once = max(1, -(-whole // RANGES))
    parts = [(i * rows, rows, min(at_once, whole - i)) for i in range(0, whole, at_once)]
    parts += [(whole * rows, rest, 1)] if rest else []
    for first, n, count in parts:
        keys = _keys_of(first, first + n * count, l_z, mask)

        def visit(i, state, first=first, n=n, keys=keys):
            return step(_Strip(first + i * n, n, keys, mask, seed, dropout), state)

        state = in_turn(count, visit, state) if count > 1 else visit(0, state)
    return state


def _keys_of(first: int, end: int, l_z: int, mask: Mask) -> slice:
    """The keys that the mask lets the queries from ``first`` to before ``end`` attend to, if not fewer."""
    if not isinstance(mask, StructuralMask) or mask.first is not None:
        return slice(0, l_z)
    stop = min(end, l_z) if mask.unidirectional else l_z
    return slice(0 if mask.width is None else min(max(0, first - mask.width + 1), stop), stop)


def _scores(strip, Qt, K, U_P):
    """QᵀK of a strip, and what the tokens' distances add to it."""
    S = jnp.matmul(strip.queries(Qt), K[:, strip.keys], preferred_element_type=accumulation_dtype(Qt.dtype))
    return S + scores_by_distance(*U_P, dtype=S.dtype).T if U_P else S


def _forward_of_tile(matrices, mask, seed, dropout, cap):
    """Strip by strip, with Qᵀ/√d_attn, K and Vᵀ::

        Sᵀ = QᵀK/√d_attn,  −∞ where the mask is False
        Wᵀ = e^{Sᵀ − m},   m = max Sᵀ of each row,   s = Σ Wᵀ of each row
        Ṽᵀ = Wᵀ Vᵀ / s

    and log-sum-exp m + log s (+∞ in a row that may attend to nothing, whose Ṽ is 0).
    """
    Qt, K, Vt, *by_distance = matrices
    dtype = accumulation_dtype(Qt.dtype)
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)

    def of_strip(strip, out):
        S = _scores(strip, Qt, K, strip.of_distances(by_distance, len(Qt)))
        S = jnp.where(strip.permitted(), capped(S, cap), -jnp.inf)
        m = S.max(axis=1, keepdims=True, initial=-jnp.inf)
        m = jnp.where(jnp.isneginf(m), 0, m)
        W = jnp.exp(S - m)
        s = W.sum(axis=1, keepdims=True)
        empty, s = s == 0, jnp.where(s == 0, 1, s)
        V_tilde_t = product((W * strip.keep_scale()).astype(Vt.dtype), Vt[strip.keys]) / s
        found = V_tilde_t.astype(Vt.dtype), jnp.where(empty, jnp.inf, m + jnp.log(s))
        return tuple(dynamic_update_slice_in_dim(a, b, strip.first, 0) for a, b in zip(out, found, strict=True))

    out = jnp.zeros_like(Vt, shape=(len(Qt), Vt.shape[1])), jnp.zeros_like(Qt, dtype, shape=(len(Qt), 1))
    return _for_each_strip(of_strip, out, K.shape[1], len(Qt), mask, seed, dropout)


def _backward_of_tile(matrices, mask, seed, dropout, cap):
    """With E = ∂F/∂Ṽ and δ = Σ_i Ṽ ⊙ E of each column, which is aᵀ(∂F/∂a), strip by strip::

        Aᵀ       = exp(QᵀK/√d_attn − log-sum-exp),  0 where the mask is False
        (∂F/∂S)ᵀ = Aᵀ ⊙ (D ⊙ EᵀV − δ) /√d_attn
        ∂F/∂V    = Σ E (A ⊙ D)ᵀ
        ∂F/∂K    = Σ Q (∂F/∂S)ᵀ
        (∂F/∂Q)ᵀ = (∂F/∂S)ᵀ Kᵀ

    where D is 1, or with dropout 0 or 1/(1 − rate), drawn again from the seed. With a cap c the scores are
    C = c tanh(S/(c √d_attn)), and ∂F/∂S is multiplied by 1 − C²/c². Scores by distance are a part of S, and have
    the rule of ``scores_by_distance_backward``.

    Source: incml 2023, whose a ⊙ g − (aᵀg) a this is; Radu 2026, §12.4.6.
    """
    Qt, K, Q, Kt, V, Et, E, V_tilde_t, log_sum_exp, *by_distance = matrices
    dtype = log_sum_exp.dtype
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)

    def of_strip(strip, sums):
        dQt, dK, dV, *by_U_P = sums
        z, E_x, U_P = strip.keys, strip.queries(Et), strip.of_distances(by_distance, len(Qt))
        S = _scores(strip, Qt, K, U_P)
        A = jnp.exp(jnp.where(strip.permitted(), capped(S, cap), -jnp.inf) - strip.queries(log_sum_exp))
        D = strip.keep_scale()
        delta = (strip.queries(V_tilde_t) * E_x).astype(dtype).sum(axis=1, keepdims=True)
        dS = A * (product(E_x, V[:, z]) * D - delta)
        dS = dS if cap is None else dS * capped_derivative(S, cap)
        dV_z = product(dynamic_slice_in_dim(E, strip.first, strip.n, 1), (A * D).astype(E.dtype))
        if U_P:
            dU, dP = by_U_P
            dU_x, dP_z = scores_by_distance_backward(*U_P, dS=dS.T)
            at = strip.first_distance(len(Qt))
            dP_z = dP_z + dynamic_slice_in_dim(dP, at, dP_z.shape[1], 1)
            by_U_P = [dynamic_update_slice_in_dim(dU, dU_x, strip.first, 1)]
            by_U_P.append(dynamic_update_slice_in_dim(dP, dP_z, at, 1))
        dS = dS.astype(Q.dtype)
        dK_z = product(dynamic_slice_in_dim(Q, strip.first, strip.n, 1), dS)
        dQt = dynamic_update_slice_in_dim(dQt, product(dS, Kt[z]), strip.first, 0)
        return dQt, dK.at[:, z].add(dK_z), dV.at[:, z].add(dV_z), *by_U_P

    sums = tuple(jnp.zeros_like(a, dtype) for a in (Qt, K, V, *by_distance))
    return _for_each_strip(of_strip, sums, K.shape[1], len(Qt), mask, seed, dropout)
