"""Algorithm 8, the encoder-decoder transformer: from a context and a sequence to each next token's distribution."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.batching import columns, tokens
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
from algorithms.masks import UNIDIRECTIONAL, StructuralMask
from algorithms.parameters import EDTransformerParams
from algorithms.registry import algorithm, compiled, lines
from algorithms.scores import IMPLEMENTATIONS
from algorithms.sublayers import Sublayers, rematerialized, without_padding
from algorithms.unembedding import unembedding_columns
from algorithms.variants import PAPER, Variant

__all__ = ["ed_decoding", "ed_encoding", "ed_hidden_state", "ed_transformer"]


def _check_theta(theta, variant, implementation, key, z_length) -> int | None:
    check_variant(variant)
    check_implementation(implementation, IMPLEMENTATIONS)
    check_key(key)
    check_length("z_length", z_length)
    axes = Axes()
    axes.check("theta.W_e", getattr(theta, "W_e", theta), "d_e N_V")
    axes.alias(d_x="d_e", d_z="d_e", d_out="d_e", d_norm="d_e")
    axes.check_params("theta", theta, EDTransformerParams)
    check_positions(theta.W_p, variant)
    return None if theta.W_p is None else theta.W_p.shape[1]


def _check(z, x, theta, *, variant=PAPER, implementation="auto", key=None, z_length=None, remat=False) -> None:
    l_max = _check_theta(theta, variant, implementation, key, z_length)
    check_tokens("z", z, l_max)
    check_tokens("x", x, l_max)


def _check_encoding(z, theta, *, variant=PAPER, implementation="auto", key=None, z_length=None, remat=False) -> None:
    check_tokens("z", z, _check_theta(theta, variant, implementation, key, z_length))


def _check_decoding(Z, x, theta, *, variant=PAPER, implementation="auto", key=None, z_length=None, remat=False) -> None:
    check_tokens("x", x, _check_theta(theta, variant, implementation, key, z_length))
    axes = Axes()
    axes.check("theta.W_e", theta.W_e, "d_e N_V")
    axes.check("Z", Z, "d_e l_z")


@algorithm(
    8,
    "EDTransformer",
    check=_check,
    static=("variant", "implementation"),
    sequences={"z": tokens, "x": tokens, "key": tokens, "z_length": tokens},
)
def ed_transformer(
    z: Int[Array, "*batch l_z"],
    x: Int[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Int[Array, "*batch"] | int | None = None,
) -> Float[Array, "N_V *batch l_x"]:
    """Algorithm 8: P ← EDTransformer(z, x | θ). The encoder-decoder transformer, the original one.

    Column t of P is the distribution P̂(x[t+1] | x[1:t], z) of the next token.

    Args:
        z: token IDs of the context, a sentence in English, say.
        x: token IDs of the primary sequence, the same sentence in German.
        theta: all parameters; ``init_ed_transformer`` makes them.
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed; see ``IMPLEMENTATIONS``.
        key: randomness of the variant's dropout, consumed; None for none.
        z_length: tokens of z that are not padding; None for all. What stands behind them is never read.

    Returns:
        P, the columns of which sum to 1.

    Raises:
        TypeError: for tokens that are no integers, parameters of another kind, or an untyped key.
        ValueError: for shapes that disagree, an empty sequence, or one longer than l_max.

    Departures: none with ``variant=PAPER``. A token ID outside [0, N_V) makes NaN of what depends on it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import EDTransformerConfig, init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> ed_transformer(jnp.array([0, 1]), jnp.array([3, 1, 0]), theta).shape
        (5, 3)

    Source: Phuong and Hutter 2022, Algorithm 8.
    """
    X = lines(ed_hidden_state)(  # lines 1-20
        z, x, theta, variant=variant, implementation=implementation, key=key, z_length=z_length
    )
    W_u = theta.W_e.T if theta.W_u is None else theta.W_u
    P = unembedding_columns(X, W_u)  # return
    return P


@compiled(
    check=_check,
    static=("variant", "implementation", "remat"),
    sequences={"z": tokens, "x": tokens, "key": tokens, "z_length": tokens},
)
def ed_hidden_state(
    z: Int[Array, "*batch l_z"],
    x: Int[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Int[Array, "*batch"] | int | None = None,
    remat: bool = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 1-20 of Algorithm 8: the decoder's hidden state X, from which W_u predicts the next token.

    The arguments are those of ``ed_transformer``; W_u is not used.
    With ``remat`` the activations of each layer are computed again in the backward pass instead of being kept.

    Raises:
        TypeError, ValueError: as ``ed_transformer``.

    Source: Phuong and Hutter 2022, Algorithm 8, lines 1-20.
    """
    options = {"variant": variant, "implementation": implementation, "z_length": z_length, "remat": remat}
    Z = lines(ed_encoding)(z, theta, key=fold_in(key, 0), **options)  # lines 1-9
    X = lines(ed_decoding)(Z, x, theta, key=fold_in(key, 1), **options)  # lines 10-20
    return X


@compiled(
    check=_check_encoding,
    static=("variant", "implementation", "remat"),
    sequences={"z": tokens, "key": tokens, "z_length": tokens},
)
def ed_encoding(
    z: Int[Array, "*batch l_z"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Int[Array, "*batch"] | int | None = None,
    remat: bool = False,
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 1-9 of Algorithm 8: encode the context sequence.

    The arguments are those of ``ed_transformer``.
    With ``remat`` the activations of each layer are computed again in the backward pass instead of being kept.

    Returns:
        Z, the encoded context; its columns at t >= z_length mean nothing.

    Raises:
        TypeError, ValueError: as ``ed_transformer``.

    Source: Phuong and Hutter 2022, Algorithm 8, lines 1-9.
    """
    f = Sublayers(variant, implementation, "relu")
    mask = StructuralMask(length=z_length)  # Mask ≡ 1, but for the padding
    l_z = z.shape[-1]  # line 1
    Z = f.embed(without_padding(z, z_length), jnp.arange(l_z), theta.W_e, theta.W_p)  # lines 2-3

    @rematerialized(remat)
    def layer(Z, indexed_params):
        params, index = indexed_params
        Z = Z + f.mh_attention(Z, Z, params.attention, mask, fold_in(key, 2 * index))  # line 5
        Z = f.norm(Z, params.norm1)  # line 6
        Z = Z + f.mlp(Z, params.mlp, fold_in(key, 2 * index + 1))  # line 7
        Z = f.norm(Z, params.norm2)  # line 8
        return Z, None

    L_enc = theta.encoder.norm1.gamma.shape[0]
    Z, _ = jax.lax.scan(layer, Z, (theta.encoder, jnp.arange(L_enc)))  # line 4
    return Z


@compiled(
    check=_check_decoding,
    static=("variant", "implementation", "remat"),
    sequences={"Z": columns, "x": tokens, "key": tokens, "z_length": tokens},
)
def ed_decoding(
    Z: Float[Array, "d_e *batch l_z"],
    x: Int[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: str = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Int[Array, "*batch"] | int | None = None,
    remat: bool = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 10-20 of Algorithm 8: decode the primary sequence, conditioning on the encoded context Z.

    The other arguments are those of ``ed_transformer``; W_u is not used.
    With ``remat`` the activations of each layer are computed again in the backward pass instead of being kept.

    Raises:
        TypeError, ValueError: as ``ed_transformer``.

    Source: Phuong and Hutter 2022, Algorithm 8, lines 10-20.
    """
    f = Sublayers(variant, implementation, "relu")
    mask = StructuralMask(length=z_length)  # Mask ≡ 1, but for the padding
    l_x = x.shape[-1]  # line 10
    X = f.embed(x, jnp.arange(l_x), theta.W_e, theta.W_p)  # lines 11-12

    @rematerialized(remat)
    def layer(X, indexed_params):
        params, index = indexed_params
        X = X + f.mh_attention(X, X, params.self_attention, UNIDIRECTIONAL, fold_in(key, 3 * index))  # line 14
        X = f.norm(X, params.norm3)  # line 15
        X = X + f.mh_attention(X, Z, params.cross_attention, mask, fold_in(key, 3 * index + 1))  # line 16
        X = f.norm(X, params.norm4)  # line 17
        X = X + f.mlp(X, params.mlp, fold_in(key, 3 * index + 2))  # line 18
        X = f.norm(X, params.norm5)  # line 19
        return X, None

    L_dec = theta.decoder.norm3.gamma.shape[0]
    X, _ = jax.lax.scan(layer, X, (theta.decoder, jnp.arange(L_dec)))  # line 13
    return X
