"""The gated delta rule of whole sequences, computed by chunks of tokens, with its backward pass derived by hand."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.options import as_printed, hand_derived


def delta_rule(
    Q: Float[Array, "H d_k B l"],
    K: Float[Array, "H d_k B l"],
    V: Float[Array, "H d_v B l"],
    log_alpha: Float[Array, "H r B l"],
    beta: Float[Array, "H B l"] | None,
    document: Integer[Array, "B l"],
    chunk: int,
) -> tuple[Float[Array, "H d_v B l"], Float[Array, "H d_k d_v B"]]:
    """The o_t, and the state after the last token, of ``S_t = α_t ⊙ S_{t−1} + k_t δ_tᵀ`` and ``o_t = S_tᵀ q_t``.

    S is 0 before a document's first token; the numbers of documents never fall. With β,
    ``δ_t = β_t (v_t − (α_t ⊙ S_{t−1})ᵀ k_t)``; without, it is v_t. r is 1, or d_k if every row of the state has a decay
    of its own; α is at most 1. ``"paper"`` computes token by token, all others by chunks of tokens, whose number is
    rounded up to a power of two.
    """
    if as_printed():
        return _by_tokens(Q, K, V, log_alpha, beta, document)
    C = 1 << (max(min(Q.shape[-1], chunk), 1) - 1).bit_length()
    return _in_chunks(C, Q, K, V, log_alpha, beta, document)


def one_token(S: Any, q: Any, k: Any, v: Any, log_alpha: Any, beta: Any) -> tuple[Any, Any]:
    """The state after a token of each sequence, and the output."""
    S = jnp.exp(log_alpha)[:, :, None] * S
    delta = v if beta is None else beta[:, None] * (v - jnp.einsum("hkvb,hkb->hvb", S, k))
    S = S + k[:, :, None] * delta[:, None]
    return S, jnp.einsum("hkvb,hkb->hvb", S, q)


def _begun(K: Any, V: Any) -> Any:
    return jnp.zeros_like(K, shape=(len(K), K.shape[1], V.shape[1], K.shape[2]))


def _by_tokens(Q: Any, K: Any, V: Any, log_alpha: Any, beta: Any, document: Any) -> tuple[Any, Any]:
    begins = jnp.pad(document[:, 1:] != document[:, :-1], ((0, 0), (1, 0)))
    log_alpha = jnp.where(begins[None, None], -jnp.inf, log_alpha)

    def token(S, of_token):
        return one_token(S, *of_token)

    of_tokens = jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), (Q, K, V, log_alpha, beta))
    S, O = jax.lax.scan(token, _begun(K, V), of_tokens)
    return jnp.moveaxis(O, 0, -1), S


class _Residuals(NamedTuple):
    """The arguments, and the state before each chunk; everything else is recomputed."""

    arguments: tuple[Any, ...]
    S: Float[Array, "chunks H B d_k d_v"]


class _Chunks(NamedTuple):
    """The arguments by chunks of C tokens, and values derived from them; r is 1, or d_k if each row has its decay."""

    Q: Float[Array, "chunks H B C d_k"]
    K: Float[Array, "chunks H B C d_k"]
    V: Float[Array, "chunks H B C d_v"]
    beta: Any  # [chunks, H, B, C, 1]; None: nothing is corrected
    log_alpha: Float[Array, "chunks H B C r"]
    together: Bool[Array, "chunks 1 B C C"]  # whether both are of one document
    Gamma: Float[Array, "chunks H B C r"]
    to_end: Float[Array, "chunks H B C r"]
    M: Float[Array, "chunks H B C C"]
    A: Any
    T: Any

    def of_state(self) -> tuple[Any, Any, Any, Any]:
        """A chunk's change of the state: ``S' = γ ⊙ S + K̂ (U − W S)``, as γ, K̂, U and W."""
        K_end, gamma = _transposed(self.to_end * self.K), self.Gamma[..., -1, :, None]
        if self.beta is None:
            return gamma, K_end, self.V, None
        return gamma, K_end, self.T @ (self.beta * self.V), self.T @ (self.beta * self.Gamma * self.K)


def _corrected(U: Any, W: Any, S: Any) -> Any:
    return U if W is None else U - W @ S


def _forward(C: int, *arguments: Any) -> tuple[tuple[Any, Any], _Residuals]:
    """In every chunk of C tokens the equations of all δ_t are solved at once, for the state S before it.

    With G_t the sum of log α over the chunk up to t, ``Γ_t = e^{G_t}``, and every e^{…} 0 between documents,

        A_ts = Σ_k e^{G_tk − G_sk} k_tk k_sk  for s < t,      M_ts = Σ_k e^{G_tk − G_sk} q_tk k_sk  for s ≤ t
        δ_t  = β_t (v_t − Sᵀ(Γ_t ⊙ k_t) − Σ_s A_ts δ_s),  so  δ = T β V − T β (Γ ⊙ K) S  with T = (1 + β A)⁻¹
        o_t  = Sᵀ(Γ_t ⊙ q_t) + Σ_s M_ts δ_s
        S'   = Γ_C ⊙ S + Σ_s (e^{G_C − G_s} ⊙ k_s) δ_sᵀ

    Only the last line goes from chunk to chunk. Without β, ``δ_t = v_t``.

    Source: Yang et al. 2025, "Gated Delta Networks", §3.3.
    """
    c = _chunks(C, *arguments)

    def chunk(S, of_chunk):
        gamma, K_end, U, W = of_chunk
        return gamma * S + K_end @ _corrected(U, W, S), S

    of_state = c.of_state()
    S, before = jax.lax.scan(chunk, jnp.moveaxis(_begun(*arguments[1:3]), -1, 1), of_state)
    O = (c.Gamma * c.Q) @ before + c.M @ _corrected(*of_state[2:], before)
    return (_columns(O, arguments[2]), jnp.moveaxis(S, 1, -1)), _Residuals(arguments, before)


def _backward(C: int, residuals: _Residuals, gradients: tuple[Any, Any]) -> tuple[Any, ...]:
    """With E = ∂F/∂O, D = ∂F/∂S' of the state after the chunk, δ and e = δ/β computed again, and ρ = β Tᵀ ∂F/∂δ::

        ∂F/∂δ = Mᵀ E + (e^{G_C − G} ⊙ K) D
        ∂F/∂S = (Γ ⊙ Q)ᵀ E + Γ_C ⊙ D − (Γ ⊙ K)ᵀ ρ        from the last chunk to the first
        ∂F/∂V = ρ,   ∂F/∂β_t = e_tᵀ ρ_t/β_t,   ∂F/∂M = E δᵀ,   ∂F/∂A = −ρ δᵀ
        ∂F/∂Q = Γ ⊙ E Sᵀ + Σ_s e^{G_t − G_s} ∂F/∂M_ts k_s
        ∂F/∂K = L + R,   L = −Γ ⊙ ρ Sᵀ + Σ_s e^{G_t − G_s} ∂F/∂A_ts k_s
                         R = e^{G_C − G} ⊙ δ Dᵀ + Σ_t e^{G_t − G_s} (∂F/∂M_ts q_t + ∂F/∂A_ts k_t)
        ∂F/∂G = Q ⊙ ∂F/∂Q + K ⊙ (L − R),   and S' ⊙ D more for G_C

    since Q and K come with e^{G_t} in Q and L, and with e^{−G_s} in R. A head with one α sums ∂F/∂G over its rows.
    ∂F/∂log α_t is the sum of ∂F/∂G over t and all later tokens of the chunk. Without β, ρ is ∂F/∂δ, and A is 0.
    """
    c, S, (E, D) = _chunks(C, *residuals.arguments), residuals.S, gradients
    E, D = _by_chunks(C, E), jnp.moveaxis(D, -1, 1)
    gamma, K_end, U, W = c.of_state()
    delta = _corrected(U, W, S)
    of_O = _transposed(c.M) @ E, _transposed(c.Gamma * c.Q) @ E

    def chunk(D, of_chunk):
        gamma, K_end, W, to_delta, to_S = of_chunk
        to_S = to_S + gamma * D
        return to_S if W is None else to_S - _transposed(W) @ (to_delta + _transposed(K_end) @ D), D

    _, D = jax.lax.scan(chunk, D, (gamma, K_end, W, *of_O), reverse=True)
    rho = of_O[0] + _transposed(K_end) @ D
    dM, dA, dbeta, dL = E @ _transposed(delta), None, None, 0
    if c.beta is not None:
        rho = _transposed(c.T) @ rho
        e = c.V - (c.Gamma * c.K) @ S - c.A @ delta
        dbeta, rho = (rho * e).sum(axis=-1, keepdims=True), c.beta * rho
        dA, dL = -rho @ _transposed(delta), -c.Gamma * (rho @ _transposed(S))
    K_left = None if c.beta is None else c.K
    _, transposed = jax.vjp(lambda Q, K_left, K: _pairs(Q, K_left, K, c.log_alpha, c.together), c.Q, K_left, c.K)
    dQ, of_pairs, dR = transposed((dM, dA))
    dQ, dL = dQ + c.Gamma * (E @ _transposed(S)), dL if of_pairs is None else dL + of_pairs
    dR = dR + c.to_end * (delta @ _transposed(D))
    after = gamma * S + K_end @ delta
    dG = (c.Q * dQ + c.K * (dL - dR)).at[..., -1, :].add((after * D).sum(axis=-1))
    if c.log_alpha.shape[-1] == 1:
        dG = dG.sum(axis=-1, keepdims=True)
    dG = jax.lax.cumsum(dG, axis=dG.ndim - 2, reverse=True)
    columns = (None if a is None else _columns(a, residuals.arguments[0]) for a in (dQ, dL + dR, rho, dG, dbeta))
    dQ, dK, dV, dG, dbeta = columns
    return dQ, dK, dV, dG, None if dbeta is None else dbeta[:, 0], None


def _chunks(C: int, Q: Any, K: Any, V: Any, log_alpha: Any, beta: Any, document: Any) -> _Chunks:
    Q, K, V, log_alpha = (_by_chunks(C, a) for a in (Q, K, V, log_alpha))
    beta = None if beta is None else _by_chunks(C, beta[:, None])
    number = _by_chunks(C, document[None, None], mode="edge")[..., 0]
    before = jnp.concatenate([number[:1, ..., 0], number[:-1, ..., -1]])  # of the state
    G, to_last = jnp.cumsum(log_alpha, axis=-2), _after(log_alpha)
    together = jnp.tri(C, dtype=bool)[None, None, None] & (number[..., :, None] == number[..., None, :])
    Gamma = jnp.exp(jnp.where((number == before[..., None])[..., None], G, -jnp.inf))
    to_end = jnp.exp(jnp.where((number == number[..., -1:])[..., None], to_last, -jnp.inf))
    M, A = _pairs(Q, None if beta is None else K, K, log_alpha, together)
    T = None if beta is None else _inverse(beta * A)
    return _Chunks(Q, K, V, beta, log_alpha, together, Gamma, to_end, M, A, T)


def _by_chunks(C: int, a: Any, mode: str = "constant") -> Any:
    """``[H, rows, B, l]`` as ``[chunks, H, B, C, rows]``."""
    *rest, l = a.shape
    a = jnp.pad(a, ((0, 0),) * 3 + ((0, -l % C),), mode=mode) if l % C else a
    return a.reshape(*rest, -(-l // C), C).transpose(3, 0, 2, 4, 1)


def _columns(a: Any, like: Any) -> Any:
    """The inverse of `_by_chunks`, cut to the number of tokens of ``like``."""
    a = a.transpose(1, 4, 2, 0, 3)
    return a.reshape(*a.shape[:3], a.shape[3] * a.shape[4])[..., : like.shape[-1]]


def _transposed(A: Any) -> Any:
    return jnp.swapaxes(A, -1, -2)


def _after(log_alpha: Any) -> Any:
    """The sum of log α over the tokens after each one. No sum here is a difference of others, which would cancel."""
    return jax.lax.cumsum(jnp.roll(log_alpha, -1, axis=-2).at[..., -1, :].set(0), axis=log_alpha.ndim - 2, reverse=True)


def _pairs(Q: Any, K_left: Any, K: Any, log_alpha: Any, together: Any) -> tuple[Any, Any]:
    if log_alpha.shape[-1] == 1:
        is_later = jnp.tri(log_alpha.shape[-2], k=-1, dtype=bool)[None, None, None]
        between = jnp.cumsum(jnp.where(is_later, log_alpha, 0), axis=-2)
        decay = jnp.exp(jnp.where(together, between, -jnp.inf))
        M, A = (None if X is None else decay * (X @ _transposed(K)) for X in (Q, K_left))
    else:
        M, A = (None if X is None else jnp.where(together, _of_rows(X, K, log_alpha), 0) for X in (Q, K_left))
    return M, None if A is None else jnp.tril(A, -1)


def _of_rows(X: Any, K: Any, log_alpha: Any) -> Any:
    """``Σ_k e^{G_tk − G_sk} x_tk k_sk`` for s ≤ t, as ``(x_t e^{G_t − G_m})ᵀ (k_s e^{G_m − G_s})`` with s ≤ m < t.

    For each pair of neighboring blocks, m is the last token of the first: no power of e is above 1.
    """
    found = (X * K).sum(axis=-1)[..., None, None]
    while (n := found.shape[-1]) < X.shape[-2]:
        x, after, k, before = (
            a.reshape(*a.shape[:-2], a.shape[-2] // (2 * n), 2, n, a.shape[-1])[..., half, :, :]
            for a, half in ((X, 1), (log_alpha, 1), (K, 0), (log_alpha, 0))
        )
        x, k = x * jnp.exp(jnp.cumsum(after, axis=-2)), k * jnp.exp(_after(before))
        found = _joined(found, x @ _transposed(k))
    return found[..., 0, :, :]


def _inverse(A: Any) -> Any:
    """``(1 + A)⁻¹`` of an A that is 0 on and above the diagonal, from the inverses of ever larger blocks on it.

    ``[[X, 0], [Y, Z]]⁻¹ = [[X⁻¹, 0], [−Z⁻¹ Y X⁻¹, Z⁻¹]]`` has no powers of A, which could be large.
    """
    found = jnp.ones_like(A, shape=(*A.shape[:-1], 1, 1))
    while (n := found.shape[-1]) < A.shape[-1]:
        m = A.shape[-1] // (2 * n)
        pairs = A.reshape(*A.shape[:-2], m, 2, n, m, 2, n)[..., :, 1, :, :, 0, :]
        Y = jnp.moveaxis(jnp.diagonal(pairs, axis1=-4, axis2=-2), -1, -3)
        found = _joined(found, -found[..., 1::2, :, :] @ Y @ found[..., 0::2, :, :])
    return found[..., 0, :, :]


def _joined(blocks: Any, below: Any) -> Any:
    """Each pair of blocks as one block, with what is below the first."""
    X, Z = blocks[..., 0::2, :, :], blocks[..., 1::2, :, :]
    above = jnp.concatenate([X, jnp.zeros_like(X)], axis=-1)
    return jnp.concatenate([above, jnp.concatenate([below, Z], axis=-1)], axis=-2)


_in_chunks = hand_derived(_forward, _backward, static=(0,))
