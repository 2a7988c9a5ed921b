"""Algorithm 10, the decoder-only transformer of GPT: from a sequence to the distribution of each next token."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.batching import tokens
from algorithms.checks import (
    Axes,
    check_implementation,
    check_key,
    check_positions,
    check_tokens,
    check_variant,
)
from algorithms.dropout import fold_in
from algorithms.masks import UNIDIRECTIONAL, documents
from algorithms.parameters import DTransformerParams
from algorithms.registry import algorithm, compiled, lines
from algorithms.scores import IMPLEMENTATIONS
from algorithms.sublayers import Sublayers, rematerialized
from algorithms.unembedding import unembedding_columns
from algorithms.variants import PAPER, Variant

__all__ = ["d_hidden_state", "d_transformer"]


def _check(
    x, theta, *, variant=PAPER, implementation="auto", key=None, positions=None, segments=None, remat=False
) -> None:
    check_variant(variant)
    check_implementation(implementation, IMPLEMENTATIONS)
    check_key(key)
    axes = Axes()
    axes.check("theta.W_e", getattr(theta, "W_e", theta), "d_e N_V")
    axes.alias(d_x="d_e", d_z="d_e", d_out="d_e", d_norm="d_e")
    axes.check_params("theta", theta, DTransformerParams)
    check_positions(theta.W_p, variant)
    check_tokens("x", x, None if theta.W_p is None else theta.W_p.shape[1])
    for name, numbers in (("positions", positions), ("segments", segments)):
        if numbers is not None:
            check_tokens(name, numbers, x.shape[0])


@algorithm(
    10,
    "DTransformer",
    check=_check,
    static=("variant", "implementation"),
    sequences={"x": tokens, "key": tokens},
)
def d_transformer(
    x: Int[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 10: P ← DTransformer(x | θ). The decoder-only transformer, GPT's.

    Column t of P is the distribution P̂(x[t+1] | x[1:t]) of the next token.

    Args:
        x: token IDs of a sequence.
        theta: all parameters; ``init_d_transformer`` makes them.
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed; see ``IMPLEMENTATIONS``.
        key: randomness of the variant's dropout, consumed; None for none.

    Returns:
        P, the columns of which sum to 1.

    Raises:
        TypeError: for tokens that are no integers, parameters of another kind, or an untyped key.
        ValueError: for shapes that disagree, an empty sequence, or one longer than l_max.

    Departures: none with ``variant=PAPER``. A token ID outside [0, N_V) makes NaN of its column and all later ones
    (and, since 0 · NaN is NaN, perhaps of earlier ones).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> d_transformer(jnp.array([3, 0, 1]), init_d_transformer(jax.random.key(0), config)).shape
        (5, 3)

    Source: Phuong and Hutter 2022, Algorithm 10.
    """
    X = lines(d_hidden_state)(x, theta, variant=variant, implementation=implementation, key=key)  # lines 1-10
    W_u = theta.W_e.T if theta.W_u is None else theta.W_u
    P = unembedding_columns(X, W_u)  # return
    return P


@compiled(
    check=_check,
    static=("variant", "implementation", "remat"),
    sequences={"x": tokens, "key": tokens, "positions": tokens, "segments": tokens},
)
def d_hidden_state(
    x: Int[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    positions: Int[Array, "*batch l"] | None = None,
    segments: Int[Array, "*batch l"] | None = None,
    remat: bool = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-10 of Algorithm 10: the decoder's hidden state X, from which W_u predicts the next token.

    Args:
        x: token IDs of a sequence.
        theta: all parameters; W_u is not used.
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed; see ``IMPLEMENTATIONS``.
        key: randomness of the variant's dropout, consumed; None for none.
        positions: the position of each token, where it is not its place in x: for packed documents.
        segments: the number of the document of each token; tokens attend their own document only.
        remat: compute the activations of each layer again in the backward pass, instead of keeping them.

    Returns:
        X of line 10, after the final layer norm.

    Raises:
        TypeError, ValueError: as ``d_transformer``.

    Source: Phuong and Hutter 2022, Algorithm 10, lines 1-10.
    """
    f = Sublayers(variant, implementation, "gelu")
    mask = UNIDIRECTIONAL if segments is None else UNIDIRECTIONAL & documents(segments)
    l = x.shape[-1]  # line 1
    t = jnp.arange(l) if positions is None else positions
    X = f.embed(x, t, theta.W_e, theta.W_p)  # lines 2-3

    @rematerialized(remat)
    def layer(X, indexed_params):
        params, index = indexed_params
        X_tilde = f.norm(X, params.norm1)  # line 5
        X = X + f.mh_attention(X_tilde, X_tilde, params.attention, mask, fold_in(key, 2 * index))  # line 6
        X_tilde = f.norm(X, params.norm2)  # line 7
        X = X + f.mlp(X_tilde, params.mlp, fold_in(key, 2 * index + 1))  # line 8
        return X, None

    L = theta.layers.norm1.gamma.shape[0]
    X, _ = jax.lax.scan(layer, X, (theta.layers, jnp.arange(L)))  # line 4
    X = f.norm(X, theta.norm)  # line 10
    return X
