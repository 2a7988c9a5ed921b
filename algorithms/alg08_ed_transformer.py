"""Algorithm 8, the encoder-decoder transformer: from a context and a sequence to each next token's distribution."""

from typing import Annotated, Any

from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg07_unembedding import unembedding, unembedding_matrix
from algorithms.alg10_d_transformer import d_layer
from algorithms.layers import Keys, Steps, for_each_layer, zero_padding
from algorithms.machinery.contract import Relation, UpTo
from algorithms.masks import UNIDIRECTIONAL, Mask, StructuralMask
from algorithms.model.variants import PAPER, Variant
from algorithms.notation import Implementation, Remat
from algorithms.ops.dropout import fold_in
from algorithms.parameters import EDDecoderLayerParams, EDTransformerParams, TransformerLayerParams

Length = Annotated[Integer[Array, "*#batch"] | int | None, UpTo("l_z")]


def _check_one_for_each(arguments) -> None:
    if arguments["variant"].dropout and arguments["z"].ndim != arguments["x"].ndim:
        raise ValueError(
            "z: expected one for each sequence of x, since dropout draws for each by itself, got one for all"
        )


Context = Annotated[Integer[Array, "*#batch l_z"], Relation(_check_one_for_each)]


def ed_transformer(
    z: Context,
    x: Integer[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Length = None,
) -> Float[Array, "N_V *batch l_x"]:
    """Algorithm 8: P ← EDTransformer(z, x | θ). The encoder-decoder transformer, the original one.

    z is the context, a sentence in English, say, and x the primary sequence, the same sentence in German. Column t of P
    is the distribution P̂(x[t+1] | x[1:t], z) of the next token.

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
    X = ed_hidden_state(  # lines 1-20
        z, x, theta, variant=variant, implementation=implementation, key=key, z_length=z_length
    )
    P = unembedding(X, unembedding_matrix(theta), b_u=theta.b_u)  # return
    return P


def ed_hidden_state(
    z: Context,
    x: Integer[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Length = None,
    remat: Remat = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 1-20 of Algorithm 8: the decoder's hidden state X, from which W_u predicts the next token."""
    options = {"variant": variant, "implementation": implementation, "z_length": z_length, "remat": remat}
    Z = ed_encoding(z, theta, key=fold_in(key, 0), **options)  # lines 1-9
    X = ed_decoding(Z, x, theta, key=fold_in(key, 1), **options)  # lines 10-20
    return X


def ed_encoding(
    z: Integer[Array, "*batch l_z"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Length = None,
    remat: Remat = False,
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 1-9 of Algorithm 8: encode the context sequence."""
    f = Steps(variant, implementation, "relu")
    mask = StructuralMask(length=z_length)  # Mask ≡ 1, but for the padding
    z = zero_padding(z, z_length)
    of_context = _embedding_of_context(theta)
    Z = f.token_embedding(z, of_context) + f.positional_embedding(z, of_context)  # lines 1-3
    Z = f.normalized(Z, of_context.embedding_norm)
    layer = d_layer if variant.norm_first else encoder_layer
    Z = for_each_layer(layer, Z, theta.encoder, mask, f, key=key, remat=remat)  # line 4
    Z = f.normalized(Z, theta.encoder_norm)
    return Z


def _embedding_of_context(theta: EDTransformerParams) -> EDTransformerParams:
    own = {} if theta.context is None else theta.context._asdict()
    return theta._replace(**{name: array for name, array in own.items() if array is not None})


def encoder_layer(
    Z: Float[Array, "d_e *batch l_z"],
    theta_l: TransformerLayerParams,
    mask: Mask,
    f: Steps,
    keys: Keys,
) -> Float[Array, "d_e *batch l_z"]:
    """Lines 5-8 of Algorithm 8: one layer of the encoder."""
    W_enc, norm1, mlp, norm2 = theta_l
    Z = Z + f.mh_attention(Z, Z, W_enc, mask, keys[0])  # line 5
    Z = f.layer_norm(Z, *norm1)  # line 6
    Z = Z + f.mlp(Z, *mlp, keys[1])  # line 7
    Z = f.layer_norm(Z, *norm2)  # line 8
    return Z


def ed_decoding(
    Z: Float[Array, "d_e *#batch l_z"],
    x: Integer[Array, "*batch l_x"],
    theta: EDTransformerParams,
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
    key: Key[Array, "*batch"] | None = None,
    z_length: Length = None,
    remat: Remat = False,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 10-20 of Algorithm 8: decode the primary sequence, conditioning on the encoded context Z."""
    f = Steps(variant, implementation, "relu")
    mask = StructuralMask(length=z_length)  # Mask ≡ 1, but for the padding
    X = f.token_embedding(x, theta) + f.positional_embedding(x, theta)  # lines 10-12
    X = f.normalized(X, theta.embedding_norm)
    layer = decoder_layer_norm_first if variant.norm_first else decoder_layer
    X = for_each_layer(layer, X, theta.decoder, Z, mask, f, key=key, draws=3, remat=remat)  # line 13
    X = f.normalized(X, theta.decoder_norm)
    return X


def decoder_layer(
    X: Float[Array, "d_e *batch l_x"],
    theta_l: EDDecoderLayerParams,
    Z: Any,
    mask: Any,
    f: Steps,
    keys: Keys,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 14-19 of Algorithm 8: one layer of the decoder; Z and its mask are what the attention in ``f`` reads."""
    W_dec, norm3, W_ed, norm4, mlp, norm5 = theta_l
    X = X + f.mh_attention(X, X, W_dec, UNIDIRECTIONAL, keys[0])  # line 14
    X = f.layer_norm(X, *norm3)  # line 15
    X = X + f.mh_attention(X, Z, W_ed, mask, keys[1])  # line 16
    X = f.layer_norm(X, *norm4)  # line 17
    X = X + f.mlp(X, *mlp, keys[2])  # line 18
    X = f.layer_norm(X, *norm5)  # line 19
    return X


def decoder_layer_norm_first(
    X: Float[Array, "d_e *batch l_x"],
    theta_l: EDDecoderLayerParams,
    Z: Any,
    mask: Any,
    f: Steps,
    keys: Keys,
) -> Float[Array, "d_e *batch l_x"]:
    """Lines 14-19 in the order of Algorithm 10, for a variant with ``norm_first``."""
    W_dec, norm3, W_ed, norm4, mlp, norm5 = theta_l
    X_tilde = f.layer_norm(X, *norm3)
    X = X + f.mh_attention(X_tilde, X_tilde, W_dec, UNIDIRECTIONAL, keys[0])
    X = X + f.mh_attention(f.layer_norm(X, *norm4), Z, W_ed, mask, keys[1])
    X = X + f.mlp(f.layer_norm(X, *norm5), *mlp, keys[2])
    return X
