"""Algorithm 9, the encoder-only transformer of BERT: from a sequence with masked tokens to their distributions."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.batching import tokens
from algorithms.checks import (
    Axes,
    check_implementation,
    check_key,
    check_length,
    check_positions,
    check_tokens,
    check_variant,
)
from algorithms.dropout import fold_in
from algorithms.linear import linear
from algorithms.masks import StructuralMask
from algorithms.parameters import ETransformerParams
from algorithms.registry import algorithm, compiled, lines
from algorithms.scores import IMPLEMENTATIONS
from algorithms.sublayers import Sublayers, rematerialized, without_padding
from algorithms.unembedding import unembedding_columns
from algorithms.variants import PAPER, Variant

__all__ = ["e_encoding", "e_hidden_state", "e_transformer"]


def _check(x, theta, *, variant=PAPER, implementation="auto", key=None, length=None, remat=False) -> None:
    check_variant(variant)
    check_implementation(implementation, IMPLEMENTATIONS)
    check_key(key)
    axes = Axes()
    axes.check("theta.W_e", getattr(theta, "W_e", theta), "d_e N_V")
    axes.alias(d_x="d_e", d_z="d_e", d_out="d_e", d_norm="d_e")
    axes.check_params("theta", theta, ETransformerParams, skip=("norm",))
    axes.alias(d_norm="d_f")
    axes.check_params("theta.norm", theta.norm, type(theta.norm))
    if theta.W_u is None and axes["d_f"] != axes["d_e"]:
        raise ValueError(f"theta.W_u: a tied unembedding needs d_f = d_e = {axes['d_e']}, got d_f = {axes['d_f']}")
    check_positions(theta.W_p, variant)
    check_tokens("x", x, None if theta.W_p is None else theta.W_p.shape[1])
    check_length("length", length)


@algorithm(
    9,
    "ETransformer",
    check=_check,
    static=("variant", "implementation"),
    sequences={"x": tokens, "key": tokens, "length": tokens},
)
def e_transformer(
    x: Int[Array, "*batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    length: Int[Array, "*batch"] | int | None = None,
) -> Float[Array, "N_V *batch l"]:
    """Algorithm 9: P ← ETransformer(x | θ). The encoder-only transformer, BERT's.

    Column t of P is a distribution over the vocabulary for the token that stands at t, or that was masked there.

    Args:
        x: token IDs of a sequence.
        theta: all parameters; ``init_e_transformer`` makes them.
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed; see ``IMPLEMENTATIONS``.
        key: randomness of the variant's dropout, consumed; None for none.
        length: tokens that are not padding; None for all. What stands at t >= length is never read.

    Returns:
        P, the columns of which sum to 1; those at t >= length mean nothing.

    Raises:
        TypeError: for tokens that are no integers, parameters of another kind, or an untyped key.
        ValueError: for shapes that disagree, an empty sequence, or one longer than l_max.

    Departures: W_u is [N_V, d_f] (the paper prints [N_V, d_e], but multiplies it by d_f rows). None else with
    ``variant=PAPER``. A token ID outside [0, N_V) makes NaN of all columns.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import ETransformerConfig, init_e_transformer
        >>> config = ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> e_transformer(jnp.array([3, 2, 1]), init_e_transformer(jax.random.key(0), config)).shape
        (5, 3)

    Source: Phuong and Hutter 2022, Algorithm 9.
    """
    X = lines(e_hidden_state)(  # lines 1-11
        x, theta, variant=variant, implementation=implementation, key=key, length=length
    )
    W_u = theta.W_e.T if theta.W_u is None else theta.W_u
    P = unembedding_columns(X, W_u, theta.b_u)  # return
    return P


@compiled(
    check=_check,
    static=("variant", "implementation", "remat"),
    sequences={"x": tokens, "key": tokens, "length": tokens},
)
def e_hidden_state(
    x: Int[Array, "*batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    length: Int[Array, "*batch"] | int | None = None,
    remat: bool = False,
) -> Float[Array, "d_f *batch l"]:
    """Lines 1-11 of Algorithm 9: the encoder's hidden state X, from which W_u predicts the masked tokens.

    Args:
        x: token IDs of a sequence.
        theta: all parameters; W_u and b_u are not used.
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed; see ``IMPLEMENTATIONS``.
        key: randomness of the variant's dropout, consumed; None for none.
        length: tokens that are not padding; None for all. What stands at t >= length is never read.
        remat: compute the activations of each layer again in the backward pass, instead of keeping them.

    Returns:
        X of line 11, after the final layer norm.

    Raises:
        TypeError, ValueError: as ``e_transformer``.

    Source: Phuong and Hutter 2022, Algorithm 9, lines 1-11.
    """
    X = lines(e_encoding)(  # lines 1-9
        x, theta, variant=variant, implementation=implementation, key=key, length=length, remat=remat
    )
    f = Sublayers(variant, implementation, "gelu")
    X = f.activate(linear(theta.W_f, X, theta.b_f, implementation))  # line 10
    X = f.norm(X, theta.norm)  # line 11
    return X


@compiled(
    check=_check,
    static=("variant", "implementation", "remat"),
    sequences={"x": tokens, "key": tokens, "length": tokens},
)
def e_encoding(
    x: Int[Array, "*batch l"],
    theta: ETransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    length: Int[Array, "*batch"] | int | None = None,
    remat: bool = False,
) -> Float[Array, "d_e *batch l"]:
    """Lines 1-9 of Algorithm 9: the residual stream after the last layer, which classifiers and embeddings read.

    Args:
        x: token IDs of a sequence.
        theta: all parameters; W_f, b_f, norm, W_u and b_u are not used.
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed; see ``IMPLEMENTATIONS``.
        key: randomness of the variant's dropout, consumed; None for none.
        length: tokens that are not padding; None for all. What stands at t >= length is never read.
        remat: compute the activations of each layer again in the backward pass, instead of keeping them.

    Returns:
        X of line 8 of the last layer.

    Raises:
        TypeError, ValueError: as ``e_transformer``.

    Source: Phuong and Hutter 2022, Algorithm 9, lines 1-9; sources/003, §12.7.
    """
    f = Sublayers(variant, implementation, "gelu")
    mask = StructuralMask(length=length)  # Mask ≡ 1, but for the padding
    l = x.shape[-1]  # line 1
    X = f.embed(without_padding(x, length), jnp.arange(l), theta.W_e, theta.W_p)  # lines 2-3
    if theta.embedding_norm is not None:
        X = f.norm(X, theta.embedding_norm)

    @rematerialized(remat)
    def layer(X, indexed_params):
        params, index = indexed_params
        X = X + f.mh_attention(X, X, params.attention, mask, fold_in(key, 2 * index))  # line 5
        X = f.norm(X, params.norm1)  # line 6
        X = X + f.mlp(X, params.mlp, fold_in(key, 2 * index + 1))  # line 7
        X = f.norm(X, params.norm2)  # line 8
        return X, None

    L = theta.layers.norm1.gamma.shape[0]
    X, _ = jax.lax.scan(layer, X, (theta.layers, jnp.arange(L)))  # line 4
    return X
