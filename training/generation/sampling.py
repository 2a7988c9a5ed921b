"""Drawing the next token: as in Algorithms 14 and 15, from the k likeliest ones, or from the nucleus."""

from typing import TypedDict

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.alg14_inference import is_greedy, sample, tempered
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.ops.draws import by_own_key
from algorithms.ops.softmax import log_softmax, softmax

__all__ = ["DRAWN_FAITHFULLY", "Sampling", "draw", "restricted"]


class Sampling(TypedDict, total=False):
    """How the next token is drawn.

    Attributes:
        tau: temperature τ: 0 takes the likeliest token, 1 samples faithfully, inf uniformly.
        top_k: draw from the k likeliest tokens only (and those as likely as the last of them); None: from all.
        top_p: draw from the nucleus only, the fewest likeliest tokens which together have this probability, at
            temperature τ and after `top_k`; None: from all.
        eos: a token that ends a sequence; what follows it is eos again. None: none does.
        repetition_penalty: what the scores of tokens that were there before are divided by where they are positive, and
            multiplied by where they are negative, before all else; 1: nothing.
        no_repeat_ngram_size: no so many tokens in a row come twice; where nothing could follow, eos does. 0: they may.
    """

    tau: float
    top_k: int | None
    top_p: float | None
    eos: int | None
    repetition_penalty: float
    no_repeat_ngram_size: int


DRAWN_FAITHFULLY: Sampling = {
    "tau": 1.0,
    "top_k": None,
    "top_p": None,
    "eos": None,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}
"""How Algorithm 14 draws, at temperature 1."""


def draw(
    log_P: Float[Array, "N_V B"],
    keys: Key[Array, "B"],
    i: Int[Array, "B"],
    *,
    tau: float | Float[Array, ""],
    top_k: int | None,
    top_p: float | Float[Array, ""] | None,
) -> Int[Array, "B"]:
    """Draw a token for each sequence, from the distribution in its column.

    Args:
        log_P: the logarithms of the distributions, or scores that differ from these by a constant in each column.
        keys: one for each sequence.
        i: the number of the token of each sequence, which is drawn with ``fold_in(key, i)``.
        tau: temperature τ, 0 for the likeliest token; the draw is from q ∝ p^{1/τ}.
        top_k: draw from the k likeliest tokens only; None for all.
        top_p: draw from the nucleus of q only; None for all.
    """
    tau = jnp.asarray(tau, accumulation_dtype(log_P.dtype))

    def likeliest(_):
        return jnp.argmax(log_P, axis=0)

    def drawn(_):
        of_token = jax.vmap(by_own_key(jax.random.fold_in))(keys, i)
        if top_k is None and top_p is None:
            return sample(log_P, tau, of_token)
        return sample(restricted(log_P, tau=tau, top_k=top_k, top_p=top_p), 1.0, of_token)

    return jax.lax.cond(is_greedy(tau), likeliest, drawn, None).astype(jnp.int32)


def restricted(
    log_P: Float[Array, "N_V *B"], *, tau: float | Float[Array, ""], top_k: int | None, top_p: float | Array | None
) -> Float[Array, "N_V *B"]:
    """``log q`` with ``q ∝ p^{1/τ}`` of the tokens that are left, −∞ of the others, in every column.

    First the ``top_k`` likeliest are left; of these then the nucleus, the fewest likeliest tokens which together have
    probability ``top_p`` or more under q. Tokens as likely as the last one that is left stay too.

    Args:
        log_P: the logarithms of the distributions, up to a constant in each column.
        tau: temperature τ > 0; inf makes all that are left equally likely.
        top_k: how many tokens, or None.
        top_p: share of the probability, in (0, 1], or None; however small it is, the likeliest token is left.

    Example:
        >>> log_q = restricted(jnp.log(jnp.array([0.5, 0.125, 0.375])), tau=1.0, top_k=2, top_p=None)
        >>> [round(float(q_v), 2) for q_v in jnp.exp(log_q)]
        [0.57, 0.0, 0.43]
    """
    log_P = log_P.astype(accumulation_dtype(log_P.dtype))
    if top_k is not None and top_k < log_P.shape[0]:
        least = jnp.moveaxis(jax.lax.top_k(jnp.moveaxis(log_P, 0, -1), top_k)[0], -1, 0)[-1:]
        log_P = jnp.where(least <= log_P, log_P, -jnp.inf)
    log_Q = tempered(log_P, jnp.asarray(tau, log_P.dtype))
    if top_p is not None:
        Q = softmax(log_Q)
        descending = jnp.sort(Q, axis=0, descending=True)
        before = jnp.cumsum(descending, axis=0) - descending
        top_p = jnp.maximum(jnp.asarray(top_p, Q.dtype), jnp.finfo(Q.dtype).tiny)
        least = jnp.min(jnp.where(before < top_p, descending, jnp.inf), axis=0, keepdims=True)
        log_Q = jnp.where(least <= Q, log_Q, -jnp.inf)
    return log_softmax(log_Q)
